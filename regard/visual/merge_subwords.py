"""Pieces put together as the words that they are parts of."""

from __future__ import annotations

from collections.abc import Sequence

from regard.visual.picture import Matrix

Words = tuple[tuple[str, range], ...]  # each word and the places of its pieces

CONTINUES, GOES_ON, ENDS, STARTS = "##", "@@", "</w>", ("▁", "Ġ")


def words_of(pieces: Sequence[str]) -> Words:
    """The words that pieces make, by the marks of their kind of vocabulary.

    "##ing" continues a word; "play@@" goes on; "ing</w>" ends one; "▁play" and "Ġplay" start one.
    Pieces without any such mark are words themselves.
    """
    starts = _starts(pieces)
    bounds = [place for place, begins in enumerate(starts) if begins] + [len(pieces)]
    runs = [range(first, end) for first, end in zip(bounds, bounds[1:], strict=False)]
    return tuple((_spelled([pieces[place] for place in run], run), run) for run in runs)


def _starts(pieces: Sequence[str]) -> list[bool]:
    """Whether each piece begins a word."""
    if any(piece.startswith(CONTINUES) and piece != CONTINUES for piece in pieces):
        begins = [not piece.startswith(CONTINUES) for piece in pieces]
    elif any(piece.endswith(GOES_ON) for piece in pieces):
        begins = [True, *(not piece.endswith(GOES_ON) for piece in pieces)]
    elif any(piece.endswith(ENDS) for piece in pieces):
        begins = [True, *(piece.endswith(ENDS) or _is_special(piece) for piece in pieces)]
    elif any(piece.startswith(STARTS) for piece in pieces):
        begins = [True, *(_apart(*two) for two in zip(pieces, pieces[1:], strict=False))]
    else:
        begins = [True] * len(pieces)
    return [place == 0 or start for place, start in enumerate(begins[: len(pieces)])]


def _apart(before: str, piece: str) -> bool:
    """Where a space starts a word: also punctuation and special pieces stand alone."""
    return piece.startswith(STARTS) or not (_is_letter(before[-1:]) and _is_letter(piece[:1]))


def _is_letter(character: str) -> bool:
    return character.isalnum() or character > "\x7f"  # bytes of byte-level pieces are letters


def _is_special(piece: str) -> bool:
    return piece[:1] + piece[-1:] in ("<>", "[]")


def _spelled(pieces: Sequence[str], run: range) -> str:
    parts = [
        piece.removeprefix(CONTINUES) if place > run.start else piece
        for place, piece in zip(run, pieces, strict=True)
    ]
    bare = "".join(part.removesuffix(GOES_ON).removesuffix(ENDS) for part in parts)
    return bare.lstrip("".join(STARTS)) or bare


def merged(weights: Matrix, rows: Words, columns: Words) -> Matrix:
    """(T, S) of pieces -> (T', S') of words: the mean over a word's rows, the sum over its columns,
    so that rows of weights still sum to one."""
    summed = [[sum(row[place] for place in places) for _, places in columns] for row in weights]
    return tuple(
        tuple(sum(summed[place][s] for place in places) / len(places) for s in range(len(columns)))
        for _, places in rows
    )
