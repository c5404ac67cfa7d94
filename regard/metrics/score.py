"""A score with the signature of how it was measured."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Protocol

from regard.errors import RegardError


@dataclass(frozen=True)
class ScoreTable:
    """Scores as a table: `head` names the columns, each of `rows` has as many cells.

    heading: what has these scores.  note: a score of all of them, or "".
    """

    heading: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class ScoreReport(Protocol):
    """The scores of each label, of each type of entities, or of each number."""

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""

    def table(self) -> ScoreTable:
        """A row for each of them."""


@dataclass(frozen=True)
class Score:
    """Prints as `BLEU = 38.21 nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0`.

    name: of the metric.  value: its value.  signature: `key:value` pairs joined by `|`; scores
    may be compared where it is equal.  count: how many sentences, labels or units were scored.
    report: the same predictions scored label by label, where the task does so; of several scores
    the first has it.
    """

    name: str
    value: float
    signature: str
    count: int
    digits: int = 2
    report: ScoreReport | None = field(default=None, repr=False, compare=False, kw_only=True)

    def facts(self) -> dict[str, Any]:
        """As JSON has it, with the report where there is one."""
        plain = {key: getattr(self, key) for key in ("name", "value", "signature", "count")}
        return plain if self.report is None else plain | self.report.facts()

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.{self.digits}f} {self.signature}".rstrip()


class NamedScore(Protocol):
    """What a score of any kind has: a `Score`, or the perplexity of a text."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def signature(self) -> str: ...


class Metric(Protocol):
    """Fed batch by batch; memory does not grow, or the metric says why it must."""

    def add(self, *batch: Any) -> None: ...

    def result(self) -> Any: ...


def check_equal(first: Sized, second: Sized, what: str, others: str) -> None:
    """Raise RegardError for columns of unequal length."""
    if len(first) != len(second):
        raise RegardError(
            f"There must be as many {what} as {others}, but there are {len(first)} {what} and "
            f"{len(second)} {others}."
        )


def check_any(count: int, name: str) -> None:
    """Raise RegardError if nothing was scored."""
    if count == 0:
        raise RegardError(f"{name} of nothing is not defined: nothing was added to it.")
