"""A score with the signature of how it was measured."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, Protocol

from regard.errors import RegardError


@dataclass(frozen=True)
class Score:
    """Prints as `BLEU = 38.21 nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0`.

    name: of the metric.  value: its value.  signature: `key:value` pairs joined by `|`; scores
    may be compared where it is equal.  count: how many sentences, labels or units were scored.
    """

    name: str
    value: float
    signature: str
    count: int
    digits: int = 2

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
