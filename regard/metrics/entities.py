"""Precision, recall and F1 of entities: a correct one has the words and the type of a target.

Equal to seqeval's, lenient (its default mode, which is conlleval's) or strict about a scheme.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from regard.errors import RegardError
from regard.metrics.class_report import COLUMNS, ScoresByLabel
from regard.metrics.score import (
    Score,
    ScoreReport,
    ScoreTable,
    check_any,
    check_equal,
    has_length,
)
from regard.metrics.tags import Span, scheme_of, spans

Sentences = Sequence[Sequence[str]]


@dataclass(frozen=True)
class EntityCounts:
    """Numbers of correct, of predicted and of target entities."""

    correct: int
    predicted: int
    target: int

    @property
    def precision(self) -> float:
        """The share of predicted entities that are correct; 0 where none was predicted."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """The share of target entities that were predicted; 0 where there is none."""
        return self.correct / self.target if self.target else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of both; 0 where there is no entity at all."""
        total = self.predicted + self.target
        return 2 * self.correct / total if total else 0.0


@dataclass(frozen=True)
class EntityReport(ScoreReport):
    """Precision, recall, F1 and the numbers of entities of each type that is predicted or a target,
    and their averages, as conlleval and seqeval give them.
    """

    types: ScoresByLabel

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        types = asdict(self.types)
        return {"types": types.pop("classes"), **types}

    def table(self) -> ScoreTable:
        """A row for each type, and one for each average."""
        return ScoreTable("Scores of each type", "", ("type", *COLUMNS), self.types.rows())


@dataclass(frozen=True, kw_only=True)
class EntityScore(Score):
    """`value` is the F1 over all entities; `counts` are theirs, `types` those of each type."""

    counts: EntityCounts
    types: dict[str, EntityCounts]

    @property
    def precision(self) -> float:
        """Over all entities."""
        return self.counts.precision

    @property
    def recall(self) -> float:
        """Over all entities."""
        return self.counts.recall

    def __str__(self) -> str:
        return (
            f"{self.name} = {self.value:.4f} (precision {self.precision:.4f}, "
            f"recall {self.recall:.4f}) {self.signature}"
        )


class EntityF1:
    """Micro-averaged F1 of entities; 0 to 1.

    scheme: None takes tags in IOB1, IOB2, IOBES or a mixture, as conlleval and seqeval's default
    mode do; a scheme's name counts only entities written as it demands, as seqeval's strict mode.
    """

    def __init__(self, scheme: str | None = None):
        if scheme is not None:
            scheme_of(scheme)
        self.scheme = scheme
        self.sentences = 0
        # Memory grows with the types of entities, not with the data.
        self._correct: Counter[str] = Counter()
        self._predicted: Counter[str] = Counter()
        self._target: Counter[str] = Counter()

    def add(self, predictions: Sentences, references: Sentences) -> None:
        """The tags of sentences, one for each word.

        Raises:
            RegardError: predictions and references differ in number; a tag is not in the scheme.
                Then no sentence of the batch is counted.
        """
        check_equal(predictions, references, "sentences", "sentences of references")
        pairs = enumerate(zip(predictions, references, strict=True), self.sentences)
        for predicted, reference in [self._entities(number, *pair) for number, pair in pairs]:
            self._correct.update(span.type for span in predicted & reference)
            self._predicted.update(span.type for span in predicted)
            self._target.update(span.type for span in reference)
            self.sentences += 1

    def result(self) -> EntityScore:
        """F1 over all entities, with precision and recall, and with the counts of each type.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.sentences, "Entity F1")
        types = {
            name: EntityCounts(self._correct[name], self._predicted[name], self._target[name])
            for name in sorted(self._predicted | self._target)
        }
        sums = (self._correct.total(), self._predicted.total(), self._target.total())
        counts = EntityCounts(*sums)
        mode = f"mode:strict|scheme:{self.scheme}" if self.scheme else "mode:default|scheme:any"
        signature = f"{mode}|average:micro|sentences:{self.sentences}|entities:{counts.target}"
        by_type = {name: (n.correct, n.predicted, n.target) for name, n in types.items()}
        report = EntityReport(ScoresByLabel.of(by_type))
        parts: Any = {"counts": counts, "types": types, "report": report}
        return EntityScore("entity F1", counts.f1, signature, counts.target, 4, **parts)

    def _entities(
        self, number: int, predicted: Sequence[str], target: Sequence[str]
    ) -> tuple[set[Span], set[Span]]:
        """The predicted entities and the targets of a sentence.

        number: of the sentence, for errors.
        """
        listed = has_length(predicted) and has_length(target)
        if isinstance(predicted, str) or isinstance(target, str) or not listed:
            raise RegardError("`predictions` and `targets` must be lists of sentences' tags.")
        if len(predicted) != len(target):
            raise RegardError(
                f"Sentence {number} has {len(target)} words, but {len(predicted)} predicted tags."
            )
        return set(spans(predicted, self.scheme)), set(spans(target, self.scheme))
