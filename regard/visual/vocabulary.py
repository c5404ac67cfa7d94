"""What a vocabulary of pieces is made of: beginnings and continuations, lengths, scripts."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from regard.errors import ConfigError
from regard.visual.curves import Curves, Series
from regard.visual.merge_subwords import CONTINUES, STARTS
from regard.visual.picture import Illustration, Picture, PictureRow
from regard.visual.table import Table

SCRIPTS = 15  # are named, the rest is one row


def vocabulary_statistics(pieces: Iterable[str], title: str = "vocabulary") -> Illustration:
    """Statistics of a vocabulary: of `tokenizer.vocab()`, or of the lines of a vocab.txt.

    A piece continues a word where it is marked so ("##ing"), or in vocabularies that mark
    beginnings ("▁play", "Ġplay"), where it is not. Reserved are pieces in brackets, such as [CLS]
    and [unused1]. A piece is of the script that all its letters have.

    Returns:
        A picture; `numbers` has "counts", "lengths" of beginnings and continuations (characters
        without marks -> pieces) and "scripts".

    Raises:
        ConfigError: there are no pieces.
    """
    known = list(pieces)
    if not known:
        raise ConfigError("`pieces` must hold at least one piece, but is empty.")
    reserved = [piece for piece in known if _is_reserved(piece)]
    texts = [piece for piece in known if not _is_reserved(piece)]
    continues = _continuing(texts)
    beginnings = [_bare(piece) for piece in texts if not continues(piece)]
    continuations = [_bare(piece) for piece in texts if continues(piece)]
    counts = {
        "pieces": len(known),
        "reserved": len(reserved),
        "beginnings": len(beginnings),
        "continuations": len(continuations),
        "beginnings of one character": sum(len(text) == 1 for text in beginnings),
        "continuations of one character": sum(len(text) == 1 for text in continuations),
    }
    lengths = {"beginnings": _lengths(beginnings), "continuations": _lengths(continuations)}
    scripts = Counter(map(script_of, beginnings + continuations))
    parts: tuple[Picture, ...] = (
        PictureRow((_table("counts", "", counts, len(known)), _scripts(scripts, len(known)))),
        Curves(
            tuple(Series(name, tuple(own.items())) for name, own in lengths.items()),
            "pieces by their length",
            "characters",
            "pieces",
        ),
    )
    numbers = {"counts": counts, "lengths": lengths, "scripts": dict(scripts.most_common())}
    return Illustration(parts, title, numbers=numbers)


def script_of(text: str) -> str:
    """LATIN, CYRILLIC, CJK, ...; "digits", "other signs", or "several" where letters disagree."""
    letters = {
        unicodedata.name(character, "UNKNOWN").split()[0].split("-")[0]
        for character in text
        if unicodedata.category(character)[0] == "L"
    }
    if letters:
        return letters.pop() if len(letters) == 1 else "several"
    return "digits" if any(character.isdigit() for character in text) else "other signs"


def _is_reserved(piece: str) -> bool:
    return len(piece) > 2 and piece[0] + piece[-1] in ("[]", "<>")


def _continuing(pieces: Sequence[str]) -> Callable[[str], bool]:
    if any(piece.startswith(CONTINUES) and piece != CONTINUES for piece in pieces):
        return lambda piece: piece.startswith(CONTINUES) and piece != CONTINUES
    if any(piece.startswith(STARTS) for piece in pieces):
        return lambda piece: not piece.startswith(STARTS)
    return lambda piece: False


def _bare(piece: str) -> str:
    for mark in (CONTINUES, *STARTS):
        if piece.startswith(mark) and piece != mark:
            return piece.removeprefix(mark)
    return piece


def _lengths(texts: Iterable[str]) -> dict[int, int]:
    return dict(sorted(Counter(map(len, texts)).items()))


def _scripts(scripts: Counter[str], total: int) -> Table:
    most = dict(scripts.most_common(SCRIPTS))
    rest = sum(scripts.values()) - sum(most.values())
    named = most | ({f"{len(scripts) - len(most)} others": rest} if rest else {})
    return _table("scripts of the letters", "", named, total)


def _table(title: str, name: str, counts: dict[str, int], total: int) -> Table:
    rows = [[key, f"{count:,}", f"{100 * count / total:.1f} %"] for key, count in counts.items()]
    return Table.of([name, "pieces", "share"], rows, title)
