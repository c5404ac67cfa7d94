"""Statistics of a vocabulary: starts and continuations of words, lengths, scripts."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from regard.text.preprocessing import looks_special
from regard.visual.charts import Curves, Series
from regard.visual.picture import Illustration, PictureRow, Table
from regard.visual.recorded_attention import CONTINUES, STARTS, marker_of

MAX_SCRIPTS = 15  # the others are one row


def vocabulary_statistics(tokens: Iterable[str], title: str = "vocabulary") -> Illustration:
    """Statistics of a vocabulary.

    A token continues a word where it is marked so ("##ing"), or, in vocabularies that mark starts
    ("▁play", "Ġplay"), where it is not. Reserved are tokens in brackets, such as [CLS] and
    [unused1]. A token has the script of all its letters.

    Args:
        tokens: `tokenizer.vocab()`, or the lines of a vocab.txt.
        title: of the picture.

    Returns:
        A picture; `numbers` has "counts", "lengths" of beginnings and continuations (characters
        without markers -> tokens) and "scripts".
    """
    known = list(tokens)
    texts = [token for token in known if not looks_special(token)]
    continues = _continuing(texts)
    groups = {
        "beginnings": [_bare(token) for token in texts if not continues(token)],
        "continuations": [_bare(token) for token in texts if continues(token)],
    }
    counts = {"tokens": len(known), "reserved": len(known) - len(texts)}
    counts |= {name: len(group) for name, group in groups.items()}
    for name, group in groups.items():
        counts[f"{name} of one character"] = sum(len(text) == 1 for text in group)
    lengths = {n: dict(sorted(Counter(map(len, group)).items())) for n, group in groups.items()}
    scripts = dict(Counter(map(script_of, sum(groups.values(), []))).most_common())
    others = list(scripts.values())[MAX_SCRIPTS:]
    shown = dict(list(scripts.items())[:MAX_SCRIPTS])
    shown |= {f"{len(others)} others": sum(others)} if others else {}
    tables = (
        _table("counts", counts, len(known)),
        _table("scripts of the letters", shown, len(known)),
    )
    series = tuple(Series(name, tuple(own.items())) for name, own in lengths.items())
    curves = Curves(series, "tokens by their length", "characters", "tokens")
    numbers = {"counts": counts, "lengths": lengths, "scripts": scripts}
    return Illustration((PictureRow(tables), curves), title, numbers=numbers)


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


def _continuing(tokens: Sequence[str]) -> Callable[[str], bool]:
    """Whether a token continues a word in this vocabulary."""
    if marker_of(tokens) == CONTINUES:
        return lambda token: token.startswith(CONTINUES) and token != CONTINUES
    if any(token.startswith(STARTS) for token in tokens):
        return lambda token: not token.startswith(STARTS)
    return lambda token: False


def _bare(token: str) -> str:
    """A token without its marker."""
    marker = next((m for m in (CONTINUES, *STARTS) if token.startswith(m) and token != m), "")
    return token.removeprefix(marker)


def _table(title: str, counts: Mapping[str, int], total: int) -> Table:
    rows = [[key, f"{count:,}", f"{100 * count / total:.1f} %"] for key, count in counts.items()]
    return Table.of(["", "tokens", "share"], rows, title)
