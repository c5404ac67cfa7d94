"""Labelled brackets of constituency trees: recall, precision, F1, exact match, equal to EVALB's.

The rules are those of its parameters COLLINS.prm, by which parsers of the Penn Treebank are scored:

- words whose tag is punctuation (, : `` '' .) or a trace are deleted, by the tags of each tree, and
  so are constituents without words and the label TOP;
- labels count without functions (NP-SBJ is NP), and ADVP equals PRT;
- a sentence whose words differ after that is an error and counts for nothing, and one of which the
  prediction has no word is skipped.

A root without a label counts as TOP.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from regard.metrics.score import LabelCounts, LabelReport, Score, check_any, check_equal
from regard.text.trees import ROOT, TRACE, ConstituencyTree, Span

PUNCTUATION = (",", ":", "``", "''", ".")
DELETED = frozenset((ROOT, TRACE, *PUNCTUATION))
EQUAL = {"PRT": "ADVP"}  # labels that count as another


@dataclass(frozen=True)
class BracketCounts:
    """Sums over sentences. matched, gold, predicted: brackets.  exact: sentences all of whose
    brackets match.  crossing: predicted brackets that cross a bracket of the gold tree.
    correct_tags: words with the right tag.
    """

    sentences: int = 0
    matched: int = 0
    gold: int = 0
    predicted: int = 0
    exact: int = 0
    crossing: int = 0
    words: int = 0
    correct_tags: int = 0

    def __add__(self, other: BracketCounts) -> BracketCounts:
        mine, theirs = asdict(self), asdict(other)
        return BracketCounts(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True, kw_only=True)
class BracketScore(Score):
    """`value` is the F1 of labelled brackets, 0 to 1; `counts` are those of all sentences.

    recall, precision: of labelled brackets.  exact_match: the share of sentences all of whose
    brackets match.  errors: sentences whose words differ.  skipped: those without a predicted word.
    """

    counts: BracketCounts
    recall: float
    precision: float
    exact_match: float
    errors: int
    skipped: int

    def __str__(self) -> str:
        return (
            f"{self.name} = {self.value:.4f} (recall {self.recall:.4f}, precision "
            f"{self.precision:.4f}, exact match {self.exact_match:.4f}) {self.signature}"
        )


class BracketF1:
    """Micro-averaged F1 of labelled brackets, by the rules above."""

    def __init__(self) -> None:
        self._counts = BracketCounts()
        self._sentences = self._errors = self._skipped = 0
        self._labels = LabelCounts()

    def add(
        self, predictions: Sequence[ConstituencyTree], references: Sequence[ConstituencyTree]
    ) -> None:
        """Predicted trees and gold trees.

        Raises:
            RegardError: their numbers differ.
        """
        check_equal(predictions, references, "trees", "gold trees")
        for tree, gold_tree in zip(predictions, references, strict=True):
            predicted, target = Scored.of(tree), Scored.of(gold_tree)
            self._sentences += 1
            if not predicted.words:
                self._skipped += 1
            elif predicted.words != target.words:
                self._errors += 1
            else:
                matched = predicted.brackets & target.brackets
                self._counts += _compared(predicted, target, matched.total())
                columns = matched, predicted.brackets, target.brackets
                self._labels.add(*([span[2] for span in c.elements()] for c in columns))

    def result(self) -> BracketScore:
        """The score of all sentences.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self._sentences, "Bracket F1")
        counts, errors, skipped = self._counts, self._errors, self._skipped
        labels = self._labels.scores()
        totals = {**asdict(counts), "errors": errors, "skipped": skipped}
        signature = f"rules:COLLINS|sentences:{counts.sentences}|errors:{errors}|skipped:{skipped}"
        return BracketScore(
            "bracket F1",
            labels.micro.f1,
            signature,
            counts.sentences,
            4,
            counts=counts,
            recall=labels.micro.recall,
            precision=labels.micro.precision,
            exact_match=counts.exact / counts.sentences if counts.sentences else 0.0,
            errors=errors,
            skipped=skipped,
            report=LabelReport(labels, totals={"counts": totals}),
        )


@dataclass(frozen=True)
class Scored:
    """What counts of a tree: words with their tags, and brackets over these words."""

    words: list[str]
    tags: list[str]
    brackets: Counter[Span]

    @classmethod
    def of(cls, tree: ConstituencyTree) -> Scored:
        """The words and brackets that are not deleted."""
        tree = tree if tree.label else replace(tree, label=ROOT)
        leaves, before = tree.leaves(), [0]
        for leaf in leaves:
            before.append(before[-1] + (leaf.label not in DELETED))
        remaining = [leaf for leaf in leaves if leaf.label not in DELETED]
        brackets = Counter[Span]()
        for start, stop, label in tree.spans():
            counted = re.split("[-=]", label)[0]
            if before[start] < before[stop] and counted not in DELETED:
                brackets[before[start], before[stop], EQUAL.get(counted, counted)] += 1
        return cls([leaf.word for leaf in remaining], [leaf.label for leaf in remaining], brackets)


def _compared(predicted: Scored, target: Scored, matched: int) -> BracketCounts:
    """The counts of one sentence."""
    gold, predicted_total = target.brackets.total(), predicted.brackets.total()
    crossing = sum(
        any(_cross(bracket, other) for other in target.brackets)
        for bracket in predicted.brackets.elements()
    )
    tags = zip(predicted.tags, target.tags, strict=True)
    correct = sum(EQUAL.get(first, first) == EQUAL.get(other, other) for first, other in tags)
    exact = int(gold == predicted_total == matched)
    words = len(target.words)
    return BracketCounts(1, matched, gold, predicted_total, exact, crossing, words, correct)


def _cross(first: Span, other: Span) -> bool:
    """Whether two brackets share words, and each has some that the other lacks."""
    return first[0] < other[0] < first[1] < other[1] or other[0] < first[0] < other[1] < first[1]
