"""A score with the signature of how it was measured, and reports of scores label by label."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Literal, Protocol, Self

import numpy as np

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
        counts = f"{len(first)} {name} and {len(second)} {others}"
        raise RegardError(f"There must be as many {name} as {others}, but there are {counts}.")


def check_any(count: int, name: str) -> None:
    """Raise RegardError if nothing was scored."""
    if count == 0:
        raise RegardError(f"{name} of nothing is not defined: nothing was added to it.")


# ------------------------------------------------------------------------------------------- labels


BINS = 15  # of the calibration error, as in Guo et al. 2017
COLUMNS = ("precision", "recall", "F1", "examples", "predicted")  # of a table, after "label"


@dataclass(frozen=True)
class ClassScores:
    """The scores of one label. A score whose denominator is 0 is 0.

    predicted, targets: the number of examples with this label as prediction, and as target.
    """

    label: str
    precision: float
    recall: float
    f1: float
    predicted: int
    targets: int

    @classmethod
    def of(cls, label: str, correct: int, predicted: int, targets: int) -> ClassScores:
        """The scores from the numbers of correct predictions, of predictions and of targets."""
        total = predicted + targets
        return ClassScores(
            label,
            correct / predicted if predicted else 0.0,
            correct / targets if targets else 0.0,
            2 * correct / total if total else 0.0,
            predicted,
            targets,
        )

    def precision_recall_f1(self) -> tuple[float, float, float]:
        """Precision, recall and F1."""
        return self.precision, self.recall, self.f1

    def cells(self) -> list[str]:
        """The row of a table with the columns `COLUMNS` after the label."""
        return [
            self.label,
            *(f"{value:.3f}" for value in self.precision_recall_f1()),
            f"{self.targets:,}",
            f"{self.predicted:,}",
        ]


@dataclass(frozen=True)
class ScoresByLabel:
    """Scores of each label, or of each type of entities, and their averages.

    micro: the scores of all labels counted together.  macro: the means over the labels.
    """

    classes: tuple[ClassScores, ...]
    micro: ClassScores
    macro: ClassScores

    @classmethod
    def of(cls, counts: Mapping[str, tuple[int, int, int]]) -> Self:
        """From (correct, predicted, targets) of each label, in this order."""
        classes = tuple(ClassScores.of(label, *numbers) for label, numbers in counts.items())
        correct, predicted, targets = (sum(n[i] for n in counts.values()) for i in range(3))
        micro = ClassScores.of("micro average", correct, predicted, targets)
        precision, recall, f1 = (
            _mean([values[i] for values in map(ClassScores.precision_recall_f1, classes)])
            for i in range(3)
        )
        macro = ClassScores("macro average", precision, recall, f1, predicted, targets)
        return cls(classes, micro, macro)

    def rows(self) -> list[list[str]]:
        """The rows of a table with the columns `COLUMNS` after the label."""
        return [scores.cells() for scores in (*self.classes, self.micro, self.macro)]


class LabelCounts:
    """How often each label was right, predicted and a target."""

    def __init__(self) -> None:
        self.correct, self.predicted, self.targets = Counter[str](), Counter[str](), Counter[str]()

    def add(self, correct: Iterable[str], predicted: Iterable[str], targets: Iterable[str]) -> None:
        """Count labels."""
        self.correct.update(correct)
        self.predicted.update(predicted)
        self.targets.update(targets)

    def scores(self) -> ScoresByLabel:
        """Those of each label that occurs, in alphabetical order."""
        labels = sorted(self.predicted | self.targets)
        return ScoresByLabel.of(
            {x: (self.correct[x], self.predicted[x], self.targets[x]) for x in labels}
        )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


@dataclass(frozen=True)
class LabelReport(ScoreReport):
    """The scores of each label, or of each type of entities, and their averages.

    kind: "label" or "type".
    """

    scores: ScoresByLabel
    kind: str = "label"

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        scores = asdict(self.scores)
        return {f"{self.kind}s": scores.pop("classes"), **scores}

    def table(self) -> ScoreTable:
        """A row for each label, and one for each average."""
        head = (self.kind, *COLUMNS)
        return ScoreTable(f"Scores of each {self.kind}", "", head, self.scores.rows())


@dataclass(frozen=True)
class ClassReport(ScoreReport):
    """The predictions of a classifier against targets.

    confusion: of each target the examples with each prediction, of those that occur.
    calibration_error: the expected calibration error, sum over bins of (n_b / N) |accuracy_b -
        confidence_b| (Guo et al. 2017, eq. 3), over 15 bins of the highest probability.
    """

    classes: tuple[ClassScores, ...]
    confusion: dict[str, dict[str, int]]
    calibration_error: float

    @classmethod
    def of(
        cls, probabilities: np.ndarray, targets: np.ndarray, labels: Sequence[str]
    ) -> ClassReport:
        """From probabilities (N, O) and the index of each target, (N,).

        Raises:
            RegardError: there are no examples, or not as many targets as predictions.
        """
        check_equal(probabilities, targets, "predictions", "targets")
        check_any(len(targets), "A report by class")
        predicted = probabilities.argmax(1)
        confusion: dict[str, dict[str, int]] = {}
        pairs = Counter(zip(targets.tolist(), predicted.tolist(), strict=True))
        for (target, prediction), count in sorted(pairs.items()):
            confusion.setdefault(labels[target], {})[labels[prediction]] = count
        counts = (
            np.bincount(chosen, minlength=len(labels)).tolist()
            for chosen in (targets[predicted == targets], predicted, targets)
        )
        classes = tuple(map(ClassScores.of, labels, *counts))
        error = calibration_error(probabilities.max(1), predicted == targets)
        return cls(classes, confusion, error)

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def table(self) -> ScoreTable:
        """A row for each label."""
        note = f"expected calibration error {self.calibration_error:.3f}"
        rows = [scores.cells() for scores in self.classes]
        return ScoreTable("Scores of each label", note, ("label", *COLUMNS), rows)


def calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
    """The expected calibration error of probabilities (N,) and whether each was correct, (N,)."""
    if not len(confidence):
        return 0.0
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)  # (low, high]
    gaps = np.bincount(bins, weights=correct - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(confidence))


@dataclass(frozen=True)
class MultiLabelReport(ScoreReport):
    """The predicted labels of examples, any number each, against their targets.

    In arrays (N, L), entry (i, l) belongs to example i and label l.

    labels: precision, recall and F1 of each label, and their averages.
    subset_accuracy: the share of examples of which all labels are correct.
    threshold: the labels whose probability is at least this are predicted.
    examples: N, the number of examples.
    """

    labels: ScoresByLabel
    subset_accuracy: float
    threshold: float
    examples: int

    @classmethod
    def of(
        cls, probabilities: np.ndarray, targets: np.ndarray, labels: Sequence[str], threshold: float
    ) -> MultiLabelReport:
        """The report for probabilities (N, L) and targets (N, L) bool: the labels of each example.

        Raises:
            RegardError: there are no examples, or not as many targets as predictions.
        """
        check_equal(probabilities, targets, "predictions", "targets")
        check_any(len(targets), "F1 of sets of labels")
        probabilities = probabilities.astype(np.float64)  # else the threshold is rounded
        predicted = probabilities >= threshold
        columns = zip((predicted & targets).sum(0), predicted.sum(0), targets.sum(0), strict=True)
        counts = {
            label: (int(correct), int(p), int(t))
            for label, (correct, p, t) in zip(labels, columns, strict=True)
        }
        exact = float((predicted == targets).all(1).mean())
        return cls(ScoresByLabel.of(counts), exact, threshold, len(targets))

    def values(self) -> dict[str, float]:
        """Micro-F1, macro-F1 and subset accuracy by name."""
        return {
            "micro-f1": self.labels.micro.f1,
            "macro-f1": self.labels.macro.f1,
            "subset-accuracy": self.subset_accuracy,
        }

    def scores(self) -> list[Score]:
        """The values as scores, the first with this report."""
        count, labels = self.examples, len(self.labels.classes)
        signature = f"labels:{labels}|threshold:{self.threshold:.4g}|count:{count}"
        names = ("micro-F1", "macro-F1", "subset accuracy")
        values = zip(names, self.values().values(), (self, None, None), strict=True)
        return [
            Score(name, value, signature, count, 4, report=report) for name, value, report in values
        ]

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        shares = {"subset_accuracy": self.subset_accuracy, "threshold": self.threshold}
        return {**asdict(self.labels), **shares}

    def table(self) -> ScoreTable:
        """A row for each label, and one for each average."""
        note = f"subset accuracy {self.subset_accuracy:.3f}, threshold {self.threshold:.3g}"
        return ScoreTable("Scores of each label", note, ("label", *COLUMNS), self.labels.rows())


def best_threshold(probabilities: np.ndarray, targets: np.ndarray) -> float:
    """The threshold with the largest micro-F1; of several the largest; 0.5 without any target.

    It is the mean of two neighbouring probabilities, or the smallest probability.

    probabilities: (N, L).  targets: (N, L) bool.
    """
    order = np.argsort(-probabilities.ravel(), kind="stable")
    ranked = probabilities.ravel()[order].astype(np.float64)
    correct = targets.ravel()[order].cumsum()
    if not len(correct) or not correct[-1]:
        return 0.5
    f1 = 2 * correct / (np.arange(1, len(correct) + 1) + correct[-1])
    lower = np.append(ranked[1:], -np.inf)
    f1[ranked == lower] = -1  # equal probabilities are predicted together
    best = int(f1.argmax())
    below = lower[best] if best + 1 < len(ranked) else ranked[best]
    return float((ranked[best] + below) / 2)
