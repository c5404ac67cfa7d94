"""Subwords merged to the words that they are parts of."""

from __future__ import annotations

from collections.abc import Sequence

from regard.text.special_tokens import looks_special
from regard.visual.picture import Matrix

Words = tuple[tuple[str, range], ...]  # each word and the indices of its subwords

CONTINUES, GOES_ON, ENDS, STARTS = "##", "@@", "</w>", ("▁", "Ġ")


def words_of(tokens: Sequence[str]) -> Words:
    """The words that tokens make, by the markers of their vocabulary.

    "##ing" continues a word; after "play@@" it goes on; "ing</w>" ends one; "▁play" and "Ġplay"
    start one. Tokens without any such marker are words themselves.
    """
    starts = [index for index, starts in enumerate(_starts(tokens)) if starts or index == 0]
    ends = [*starts[1:], len(tokens)]
    runs = [range(start, end) for start, end in zip(starts, ends, strict=False)]
    return tuple((_word([tokens[index] for index in run]), run) for run in runs)


def _starts(tokens: Sequence[str]) -> list[bool]:
    """Whether each token starts a word."""
    pairs = list(zip(tokens, tokens[1:], strict=False))
    if any(token.startswith(CONTINUES) and token != CONTINUES for token in tokens):
        return [not token.startswith(CONTINUES) for token in tokens]
    if any(token.endswith(GOES_ON) for token in tokens):
        return [True, *(not before.endswith(GOES_ON) for before, _ in pairs)]
    if any(token.endswith(ENDS) for token in tokens):
        return [True, *(before.endswith(ENDS) or looks_special(before) for before, _ in pairs)]
    if any(token.startswith(STARTS) for token in tokens):
        # Punctuation and special tokens are words, too.
        return [
            True,
            *(
                token.startswith(STARTS) or not (_is_letter(before[-1:]) and _is_letter(token[:1]))
                for before, token in pairs
            ),
        ]
    return [True] * len(tokens)


def _is_letter(character: str) -> bool:
    return character.isalnum() or character > "\x7f"  # bytes of byte-level tokens are letters


def _word(tokens: Sequence[str]) -> str:
    parts = [tokens[0], *(token.removeprefix(CONTINUES) for token in tokens[1:])]
    bare = "".join(part.removesuffix(GOES_ON).removesuffix(ENDS) for part in parts)
    return bare.lstrip("".join(STARTS)) or bare


def merged(weights: Matrix, rows: Words, columns: Words) -> Matrix:
    """(T, S) of tokens -> (T', S') of words: the mean over the rows of a word, the sum over its
    columns, so that rows of weights still sum to one."""
    summed = [[sum(row[s] for s in run) for _, run in columns] for row in weights]
    return tuple(
        tuple(sum(summed[t][s] for t in run) / len(run) for s in range(len(columns)))
        for _, run in rows
    )
