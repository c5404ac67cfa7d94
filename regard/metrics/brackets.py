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
from dataclasses import dataclass, replace

from regard.metrics.score import LabelCounts, LabelReport, Score, check_any, check_equal
from regard.text.trees import ROOT, TRACE, ConstituencyTree, Span

PUNCTUATION = (",", ":", "``", "''", ".")
DELETED = frozenset((ROOT, TRACE, *PUNCTUATION))
EQUAL = {"PRT": "ADVP"}  # labels that count as another


@dataclass(frozen=True, kw_only=True)
class BracketScore(Score):
    """`value` is the F1 of labelled brackets, 0 to 1; `count` is the number of scored sentences.

    recall, precision: of labelled brackets.  exact_match: the share of sentences all of whose
    brackets match.  errors: sentences whose words differ.  skipped: those without a predicted word.
    """

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
        self._sentences = self._errors = self._skipped = self._exact = 0
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
                self._exact += predicted.brackets == target.brackets
                columns = matched, predicted.brackets, target.brackets
                self._labels.add(*([span[2] for span in c.elements()] for c in columns))

    def result(self) -> BracketScore:
        """The score of all sentences.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self._sentences, "Bracket F1")
        errors, skipped, labels = self._errors, self._skipped, self._labels.scores()
        count = self._sentences - errors - skipped
        signature = f"rules:COLLINS|sentences:{count}|errors:{errors}|skipped:{skipped}"
        return BracketScore(
            "bracket F1",
            labels.micro.f1,
            signature,
            count,
            4,
            recall=labels.micro.recall,
            precision=labels.micro.precision,
            exact_match=self._exact / count if count else 0.0,
            errors=errors,
            skipped=skipped,
            report=LabelReport(labels),
        )


@dataclass(frozen=True)
class Scored:
    """What counts of a tree: words, and brackets over these words."""

    words: list[str]
    brackets: Counter[Span]

    @classmethod
    def of(cls, tree: ConstituencyTree) -> Scored:
        """The words and brackets that are not deleted."""
        tree = tree if tree.label else replace(tree, label=ROOT)
        leaves, before = tree.leaves(), [0]
        for leaf in leaves:
            before.append(before[-1] + (leaf.label not in DELETED))
        brackets = Counter[Span]()
        for start, stop, label in tree.spans():
            counted = re.split("[-=]", label)[0]
            if before[start] < before[stop] and counted not in DELETED:
                brackets[before[start], before[stop], EQUAL.get(counted, counted)] += 1
        return cls([leaf.word for leaf in leaves if leaf.label not in DELETED], brackets)
