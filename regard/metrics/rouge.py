"""ROUGE: what a summary shares with its reference (Lin 2004).

ROUGE-1 and ROUGE-2 count common words and pairs of words, ROUGE-L the longest common subsequence.
Each gives precision, recall and their harmonic mean F1 of a text; the score of a corpus is the mean
of F1. Words are lowercase runs of a-z and 0-9, not stemmed, as in the package `rouge-score`.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Hashable, Sequence

from regard.errors import RegardError
from regard.metrics.score import Score, check_any, check_equal

KINDS = ("rouge1", "rouge2", "rougeL")
_WORD = re.compile(r"[a-z0-9]+")


class ROUGE:
    """The mean F1 of texts against their references; 0 to 100.

    kind: "rouge1", "rouge2" or "rougeL".
    """

    def __init__(self, kind: str = "rougeL"):
        if kind not in KINDS:
            raise RegardError(f"`kind` must be one of {', '.join(KINDS)}, but is {kind!r}.")
        self.kind, self.sum, self.count = kind, 0.0, 0

    def add(self, predictions: Sequence[str], references: Sequence[str]) -> None:
        """Texts and, for each, its reference.

        Raises:
            RegardError: not as many references as predictions, or one of them is no string. Then no
                text of the batch is counted.
        """
        check_equal(predictions, references, "predictions", "references")
        pairs = list(zip(predictions, references, strict=True))
        for number, pair in enumerate(pairs, self.count):
            for text in pair:
                if not isinstance(text, str):
                    raise RegardError(f"Text {number} must be a string, but is {text!r}.")
        unread = next((text for pair in pairs for text in pair if _unread(text)), None)
        if unread is not None:
            warnings.warn(
                "ROUGE counts words of a-z and 0-9 alone, as the package rouge-score does, and "
                f"{unread!r:.60} has none. Choose chrF for such texts.",
                stacklevel=2,
            )
        for pair in pairs:
            self.sum += self._f1(*(_WORD.findall(text.lower()) for text in pair))
            self.count += 1

    def result(self) -> Score:
        """The mean of all that was added.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.count, "ROUGE")
        name = f"ROUGE-{self.kind.removeprefix('rouge')}"
        signature = f"count:{self.count}|score:f1|tok:a-z0-9|stem:no"
        return Score(name, 100 * self.sum / self.count, signature, self.count)

    def _f1(self, hypothesis: list[str], reference: list[str]) -> float:
        if self.kind == "rougeL":
            return _harmonic_mean(
                longest_common(hypothesis, reference), len(hypothesis), len(reference)
            )
        size = int(self.kind[-1])
        counts = [_ngrams(words, size) for words in (hypothesis, reference)]
        return _harmonic_mean((counts[0] & counts[1]).total(), counts[0].total(), counts[1].total())


def _unread(text: str) -> bool:
    """Whether a text has letters, but none that count."""
    return not _WORD.search(text.lower()) and any(map(str.isalpha, text))


def longest_common(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """The length of the longest common subsequence (Hyyrö 2004): a bit for each of `first`."""
    positions: dict[Hashable, int] = {}
    for i, item in enumerate(first):
        positions[item] = positions.get(item, 0) | 1 << i
    ones = (1 << len(first)) - 1
    row = ones
    for item in second:
        matches = row & positions.get(item, 0)
        row = (row + matches | row - matches) & ones
    return len(first) - row.bit_count()


def _ngrams(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[i:] for i in range(size)), strict=False))


def _harmonic_mean(common: int, hypothesis: int, reference: int) -> float:
    """2 P R / (P + R), P = common / hypothesis, R = common / reference."""
    return 2 * common / (hypothesis + reference) if common else 0.0
