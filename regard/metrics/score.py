"""A score with the signature of how it was measured."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal, Protocol

from regard.errors import RegardError

# Words in the names of scores that are better if lower. "error-free" is none of them.
_LOWER = re.compile(
    r"(?<![a-z])(perplexity|bits|nats|loss(es)?|nll|cross[- ]?entropy|distances?|errors?"
    r"|wer|cer|ter|r?mse|mae)(?![a-z]|[- ]free)"
)


def better_direction(name: str, goal: tuple[str, str]) -> Literal["max", "min"]:
    """Whether a higher ("max") or a lower ("min") value of the score of this name is better.

    goal: the name and the direction of the validation score that chooses the weights. A score whose
        name is the goal's, or ends in it, has its direction; the words of other names tell theirs.
    """
    name, of_goal = name.lower(), re.escape(goal[0].lower())
    if re.search(rf"(?<![a-z0-9]){of_goal}$", name):
        return "min" if goal[1] == "min" else "max"
    return "min" if _LOWER.search(name) else "max"


@dataclass(frozen=True)
class ScoreTable:
    """Scores as a table: `head` names the columns, each of `rows` has as many cells.

    heading: what has these scores.  note: a score of all of them, or "".
    """

    heading: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        """In columns: the first to the left, the others, which are numbers, to the right."""
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        lines = (
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in (self.head, *self.rows)
        )
        return "\n".join([*lines, *([self.note] if self.note else [])])

    def _repr_html_(self) -> str:
        """In a notebook."""
        head, *rows = (
            "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
            for tag, row in (("th", self.head), *(("td", row) for row in self.rows))
        )
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return table + (f"<p>{escape(self.note)}</p>" if self.note else "")


class ScoreReport(Protocol):
    """The scores of each label, of each type of entities, or of each number.

    Prints as its table, which a notebook shows as such.
    """

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""

    def table(self) -> ScoreTable:
        """A row for each of them."""

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


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


class Scores(Mapping[str, float]):
    """What `evaluate` returns: the value of each score by its name.

        scores["accuracy"]          0.94
        scores.named[0].signature   how it was measured

    named: the scores with their signatures, in order.
    outputs: the texts that were scored, of a task that generates texts.
    """

    def __init__(self, named: Iterable[NamedScore], outputs: Sequence[str] = ()):
        self.named, self.outputs = tuple(named), outputs

    def __getitem__(self, name: str) -> float:
        """The value of the score of this name.

        Raises:
            KeyError: there is none; the names are named.
        """
        for score in self.named:
            if score.name == name:
                return score.value
        raise KeyError(f"{name!r} is none of the scores: {', '.join(self)}")

    def __iter__(self) -> Iterator[str]:
        return iter([score.name for score in self.named])

    def __len__(self) -> int:
        return len(self.named)

    def __str__(self) -> str:
        """The scores with their signatures, one a line."""
        return "\n".join(map(str, self.named))

    def __repr__(self) -> str:
        return f"Scores({', '.join(f'{name}={value:.4g}' for name, value in self.items())})"

    def _repr_html_(self) -> str:
        """In a notebook: a table; below it the scores of each label, where there are such."""
        rows = [(score.name, f"{score.value:.4g}", score.signature) for score in self.named]
        table = ScoreTable("", "", ("score", "value", "signature"), rows)._repr_html_()
        return table + (self.report._repr_html_() if self.report is not None else "")

    @property
    def report(self) -> ScoreReport | None:
        """The same predictions scored label by label, where the task does so."""
        first = self.named[0] if self.named else None
        return first.report if isinstance(first, Score) else None


class Metric(Protocol):
    """Fed batch by batch; memory does not grow, or the metric says why it must."""

    def add(self, *batch: Any) -> None: ...

    def result(self) -> Any: ...


def check_equal(first: Sized, second: Sized, name: str, others: str) -> None:
    """Raise RegardError for columns of unequal length, and for a string in the place of a list,
    which would be read letter by letter.
    """
    if isinstance(first, str) or isinstance(second, str):
        raise RegardError(f"The {name} and {others} must be lists, but one is a string.")
    if len(first) != len(second):
        raise RegardError(
            f"There must be as many {name} as {others}, but there are {len(first)} {name} and "
            f"{len(second)} {others}."
        )


def check_any(count: int, name: str) -> None:
    """Raise RegardError if nothing was scored."""
    if count == 0:
        raise RegardError(f"{name} of nothing is not defined: nothing was added to it.")
