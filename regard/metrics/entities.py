"""Precision, recall and F1 of entities: right is what has the wanted words and the wanted type.

Equal to seqeval's, lenient (its default mode, which is conlleval's) or strict about a scheme.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import RegardError
from regard.metrics.score import Score, check_any, check_equal
from regard.metrics.tags import scheme_of, spans

Sentences = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Counts:
    """How many entities are right, were predicted, and were wanted."""

    right: int
    found: int
    wanted: int

    @property
    def precision(self) -> float:
        """Of the predicted entities, the right ones; 0 where none was predicted."""
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Of the wanted entities, the right ones; 0 where none was wanted."""
        return self.right / self.wanted if self.wanted else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of both; 0 where there is no entity at all."""
        both = self.found + self.wanted
        return 2 * self.right / both if both else 0.0


@dataclass(frozen=True, kw_only=True)
class EntityScore(Score):
    """`value` is the F1 over all entities; `counts` are theirs, `types` those of each type."""

    counts: Counts
    types: dict[str, Counts]

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
        self._right: Counter[str] = Counter()
        self._found: Counter[str] = Counter()
        self._wanted: Counter[str] = Counter()

    def add(self, predictions: Sentences, targets: Sentences) -> None:
        """The tags of sentences, one for each word.

        Raises:
            RegardError: not as many sentences, or tags in a sentence, as wanted; a tag that is
                none of the scheme's.
        """
        check_equal(predictions, targets, "sentences", "sentences of targets")
        for found, wanted in zip(predictions, targets, strict=True):
            self._add(found, wanted)

    def result(self) -> EntityScore:
        """F1 over all entities, with precision and recall, and with the counts of each type.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.sentences, "Entity F1")
        types = {
            name: Counts(self._right[name], self._found[name], self._wanted[name])
            for name in sorted(self._found | self._wanted)
        }
        counts = Counts(self._right.total(), self._found.total(), self._wanted.total())
        mode = (
            "mode:default|scheme:any"
            if self.scheme is None
            else f"mode:strict|scheme:{self.scheme}"
        )
        signature = f"{mode}|average:micro|sentences:{self.sentences}|entities:{counts.wanted}"
        return EntityScore(
            "entity F1", counts.f1, signature, counts.wanted, 4, counts=counts, types=types
        )

    def _add(self, found: Sequence[str], wanted: Sequence[str]) -> None:
        if isinstance(found, str) or isinstance(wanted, str):
            raise RegardError("`predictions` and `targets` must be lists of sentences' tags.")
        if len(found) != len(wanted):
            raise RegardError(
                f"Sentence {self.sentences} has {len(wanted)} words, but {len(found)} predicted "
                "tags."
            )
        predicted, right = set(spans(found, self.scheme)), set(spans(wanted, self.scheme))
        self._right.update(span.type for span in predicted & right)
        self._found.update(span.type for span in predicted)
        self._wanted.update(span.type for span in right)
        self.sentences += 1
