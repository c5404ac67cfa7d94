"""The attention weights of a forward pass, by tokens or by the words that they are parts of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.capture import NEXT, Labels
from regard.errors import ConfigError
from regard.text.preprocessing import looks_special
from regard.text.published import bytes_of_characters

Tokens = Sequence[str] | None  # None: they are not known


@dataclass
class RecordedAttention:
    """One attention of a model in one forward pass."""

    name: str
    kind: str
    heads: tuple[int, ...] = ()  # their numbers, from 1, where some were pruned; else 1, 2, 3, ...
    parts: list[Tensor] = field(default_factory=list)  # a decoder's, step by step

    @property
    def weights(self) -> Tensor:
        """(B, H, T, S), float32, on the CPU; the steps of a decoder are concatenated.

        Raises:
            ConfigError: they were recorded in a search, which reorders its rows.
        """
        rows = [part.size(0) for part in self.parts]
        if min(rows) < max(rows):
            raise ConfigError("A beam search exchanges rows: record `generate` of a task instead.")
        keys = max(part.size(-1) for part in self.parts)
        padded = [pad(part, (0, keys - part.size(-1))) for part in self.parts]
        return torch.cat(padded, dim=2)


@dataclass
class ForwardPass:
    """One forward pass: its attentions by name, in the order in which they ran."""

    attentions: dict[str, RecordedAttention] = field(default_factory=dict)
    source: Labels | None = None
    target: Labels | None = None

    def labels(self, kind: str, row: int) -> tuple[Tokens, Tokens]:
        """The queries and the keys of a row in attention of this kind."""
        source, target = (
            None if side is None else side[row] for side in (self.source, self.target)
        )
        if kind == "query":  # in the order of the text a query stands where the next token will
            read = target if source is None else source
            return None if read is None else [*read[1:], NEXT], read
        if kind == "encoder" and source is None:  # of a language model that reads no source
            return target, target
        if kind == "encoder" or (kind == "decoder" and target is None):
            return source, source
        if source is None or target is None:
            return target, source if kind == "cross" else target
        # The decoder reads bos … and predicts … eos: cross-attention is for the token predicted
        # next.
        return (target[1:], source) if kind == "cross" else (target[:-1], target[:-1])


Words = tuple[tuple[str, range], ...]  # each word and the indices of its subwords

CONTINUES, GOES_ON, ENDS, STARTS = "##", "@@", "</w>", ("▁", "Ġ")
BYTES = STARTS[1]  # in its vocabularies every character stands for a byte, as in GPT-2's
BLANKS = ("Ċ", "č", "ĉ")  # so written: line feed, carriage return, tab


def words_of(tokens: Sequence[str]) -> Words:
    """The words that tokens make, by the markers of their vocabulary.

    "##ing" continues a word; after "play@@" it goes on; "ing</w>" ends one; "▁play" and "Ġplay"
    start one. Tokens without any such marker are words themselves. Words of "Ġ" vocabularies, whose
    characters stand for bytes, are written as text.
    """
    marker = marker_of(tokens)
    starts = [n for n, starts in enumerate(_starts(tokens, marker)) if starts or n == 0]
    ends = [*starts[1:], len(tokens)]
    runs = [range(start, end) for start, end in zip(starts, ends, strict=False)]
    return tuple((_word([tokens[index] for index in run], marker), run) for run in runs)


def without_markers(tokens: Sequence[str]) -> list[str]:
    """Tokens as text: "sav@@" is "sav…", since its word goes on, and "##ing" is "…ing"."""
    marker = marker_of(tokens)
    return [_without_marker(token, marker) for token in tokens]


def _without_marker(token: str, marker: str) -> str:
    text = _word([token], marker)
    if not marker or looks_special(token):
        return text
    goes_on = token.endswith(GOES_ON) if marker == GOES_ON else not token.endswith(ENDS)
    if marker in (GOES_ON, ENDS):
        return text + "…" if goes_on else text
    if marker == CONTINUES:
        return "…" + token.removeprefix(CONTINUES) if token.startswith(CONTINUES) else token
    return text if token.startswith((*STARTS, *BLANKS)) or not _is_letter(token) else "…" + text


def marker_of(tokens: Sequence[str]) -> str:
    """The marker of the tokens' vocabulary; "" where there is none.

    Signs alone are text and no marker: "###" of a heading, "@@" of a diff.
    """
    if any(token.startswith(CONTINUES) and token.strip("#") for token in tokens):
        return CONTINUES
    signs = "".join(STARTS) + "@"
    if any(token.endswith(GOES_ON) and token.strip(signs) for token in tokens):
        return GOES_ON
    if any(token.endswith(ENDS) for token in tokens):
        return ENDS
    return next(
        (marker for marker in STARTS if any(token.startswith(marker) for token in tokens)), ""
    )


def _starts(tokens: Sequence[str], marker: str) -> list[bool]:
    """Whether each token but the first starts a word."""
    if marker == CONTINUES:
        return [not token.startswith(CONTINUES) or token == CONTINUES for token in tokens]
    pairs = zip(tokens, tokens[1:], strict=False)
    if marker == GOES_ON:
        later = [not before.endswith(GOES_ON) or before == GOES_ON for before, _ in pairs]
    elif marker == ENDS:
        later = [before.endswith(ENDS) or looks_special(before) for before, _ in pairs]
    else:
        later = [not marker or _starts_after(*pair, marker) for pair in pairs]
    return [True, *later][: len(tokens)]


def _starts_after(before: str, token: str, marker: str) -> bool:
    """Whether a token starts a word: punctuation, special tokens and white space are words, too."""
    blanks = BLANKS if marker == BYTES else ()
    if token.startswith((*STARTS, *blanks)) or before.endswith(blanks):
        return True
    return not (_is_letter(before[-1:]) and _is_letter(token[:1]))


def _is_letter(character: str) -> bool:
    return character.isalnum() or character > "\x7f"  # bytes of byte-level tokens are letters


def _word(tokens: Sequence[str], marker: str) -> str:
    """What tokens write, without markers."""
    if marker == CONTINUES:
        return "".join([tokens[0], *(token.removeprefix(CONTINUES) for token in tokens[1:])])
    if marker == GOES_ON:
        return "".join(token.removesuffix(GOES_ON) or token for token in tokens)
    word = "".join(tokens)
    if marker == ENDS:
        return "".join(token.removesuffix(ENDS) for token in tokens) or word
    bare = word.lstrip("".join(STARTS)) or word
    return _text_of_bytes(bare) if marker == BYTES else bare


def _text_of_bytes(word: str) -> str:
    """The text of a word whose characters stand for bytes; a part of a character stays as it is."""
    try:
        return bytes(_byte_of()[character] for character in word).decode().strip(" ") or word
    except (KeyError, UnicodeDecodeError):
        return word


@cache
def _byte_of() -> dict[str, int]:
    return bytes_of_characters()


def merged(weights: Tensor, rows: Words, columns: Words) -> Tensor:
    """(..., T, S) of tokens -> (..., T', S') of words: the mean over the rows of a word, the sum
    over its columns (Clark et al. 2019, section 4.1), so that rows of weights still sum to one.
    """
    *many, queries, _ = weights.shape
    sums = weights.new_zeros(*many, queries, len(columns))
    sums.index_add_(-1, _word_of_each_token(columns), weights)
    rows_summed = weights.new_zeros(*many, len(rows), len(columns))
    rows_summed.index_add_(-2, _word_of_each_token(rows), sums)
    return rows_summed / weights.new_tensor([len(run) for _, run in rows])[:, None]


def _word_of_each_token(words: Words) -> Tensor:
    """The index of the word that each token is a part of, (T,)."""
    return torch.tensor([index for index, (_, run) in enumerate(words) for _ in run])
