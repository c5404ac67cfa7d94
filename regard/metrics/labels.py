"""How well labels and numbers are predicted: accuracy, F1, Matthews; Pearson, Spearman; GLUE's.

The counts of how often each label was predicted for each are kept by the labels' names and add up
over batches. GLUE's nine tasks have their own metrics (Wang et al. 2019):

| task | metrics |
|---|---|
| `cola` | Matthews correlation |
| `sst2`, `mnli-matched`, `mnli-mismatched`, `qnli`, `rte`, `wnli` | accuracy |
| `mrpc`, `qqp` | accuracy, F1 of "1" |
| `stsb` | Pearson's and Spearman's correlation |
"""

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from regard.errors import ConfigError, RegardError
from regard.metrics.score import Metric, Score, check_any, check_equal
from regard.suggest import nearest

IGNORE = -100

# Names of labels, or integers; as two lists, or two integer arrays or tensors of one shape.
Labels = Sequence[Any] | np.ndarray | Tensor


def counted_pairs(predictions: Labels, references: Labels) -> list[tuple[Any, Any]]:
    """(prediction, target) of all whose target is not -100.

    Raises:
        RegardError: there are not as many predictions as references.
    """
    check_equal(predictions, references, "predictions", "references")
    columns = [
        column.flatten().tolist() if isinstance(column, Tensor | np.ndarray) else column
        for column in (predictions, references)
    ]
    return [pair for pair in zip(*columns, strict=True) if pair[1] != IGNORE]


class Accuracy:
    """The share of predictions that equal their target; targets of -100 do not count."""

    def __init__(self) -> None:
        self.right, self.count = 0, 0

    def add(self, predictions: Labels, references: Labels) -> None:
        """Labels of any kind; see `counted_pairs`."""
        pairs = counted_pairs(predictions, references)
        self.right += sum(prediction == reference for prediction, reference in pairs)
        self.count += len(pairs)

    def result(self) -> Score:
        """Between 0 and 1.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.count, "Accuracy")
        return Score("accuracy", self.right / self.count, f"count:{self.count}", self.count, 4)


class _Confusion:
    """Counts pairs (predicted, target); memory grows with the labels, not with the data."""

    def __init__(self, labels: Sequence[Hashable] | None = None):
        self.labels = None if labels is None else tuple(labels)
        self.pairs: Counter[tuple[Hashable, Hashable]] = Counter()

    def add(self, predictions: Labels, references: Labels) -> None:
        """Labels; see `counted_pairs`.

        Raises:
            RegardError: there are not as many predictions as references, or a label is not one of
                the `labels` given at the start.
        """
        pairs = Counter(counted_pairs(predictions, references))
        self._check({label for pair in pairs for label in pair})
        self.pairs += pairs

    @property
    def count(self) -> int:
        """How many predictions were counted."""
        return self.pairs.total()

    def _check(self, labels: set[Hashable]) -> None:
        allowed = labels if self.labels is None else self.labels
        if unknown := labels.difference(allowed):
            label = min(map(repr, unknown))
            raise RegardError(f"There is no label {label}. {nearest(label, map(str, allowed))}")

    def _sums(self) -> tuple[Counter[Hashable], Counter[Hashable], Counter[Hashable]]:
        """How often each label was right, predicted, and the target."""
        right: Counter[Hashable] = Counter()
        predicted: Counter[Hashable] = Counter()
        targets: Counter[Hashable] = Counter()
        for (prediction, target), count in self.pairs.items():
            predicted[prediction] += count
            targets[target] += count
            if prediction == target:
                right[target] += count
        return right, predicted, targets

    def _score(self, name: str, value: float, *signature: str) -> Score:
        text = "|".join([*signature, f"count:{self.count}"])
        return Score(name, value, text, self.count, 4)


class F1(_Confusion):
    """2 P R / (P + R) of one label, with its precision P and recall R; MRPC's and QQP's is "1".

    labels: all labels, where they are known: any other label raises an error, and F1 is 0 if
        `positive` never occurs. None: `result` raises an error if `positive` never occurs, since
        it may be misspelled.
    """

    def __init__(self, positive: Hashable, labels: Sequence[Hashable] | None = None):
        super().__init__(labels)
        self.positive = positive

    def result(self) -> Score:
        """Between 0 and 1.

        Raises:
            RegardError: nothing was added; the positive label is neither known nor seen.
        """
        check_any(self.count, "F1")
        right, predicted, targets = self._sums()
        labels = predicted | targets if self.labels is None else self.labels
        if self.positive not in labels:
            hint = nearest(str(self.positive), map(str, labels))
            raise RegardError(f"No label is {self.positive!r}. {hint} Or give `labels`.")
        value = _f1(right[self.positive], predicted[self.positive], targets[self.positive])
        return self._score("F1", value, f"positive:{self.positive}")


class MacroF1(_Confusion):
    """The mean of every label's F1.

    labels: all labels, where they are known: any other label raises an error, and the F1 of a
        label that never occurs is 0. None: the mean is over the labels that occur.
    """

    def result(self) -> Score:
        """Between 0 and 1.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.count, "Macro-F1")
        right, predicted, targets = self._sums()
        labels = list(predicted | targets) if self.labels is None else self.labels
        value = math.fsum(_f1(right[name], predicted[name], targets[name]) for name in labels)
        return self._score("macro-F1", value / len(labels), f"labels:{len(labels)}")


NO_RELATION = {"Other", "no_relation"}  # labels of pairs without one of the relations


class RelationF1(_Confusion):
    """The mean of the F1 of relations but `Other`: the official score of SemEval-2010 task 8.

    Both directions of a relation, such as Cause-Effect(e1,e2) and Cause-Effect(e2,e1), count
    together; a prediction with the wrong one is wrong. The mean is over the relations that occur
    among the targets (Hendrickx et al. 2010, section 4). `no_relation` is `Other`.
    """

    score_name = "relation-f1"

    def result(self) -> Score:
        """Between 0 and 1; 0 where every target is `Other`.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.count, "Relation F1")
        counts = [_without_direction(sums) for sums in self._sums()]
        relations = sorted(counts[2].keys() - NO_RELATION)
        return self._score(
            self.score_name, self._f1_of(relations, counts), f"relations:{len(relations)}"
        )

    def _f1_of(self, relations: list[str], counts: list[Counter[str]]) -> float:
        """The mean over the relations; counts: of right predictions, predictions and targets."""
        each = (_f1(*(sums[name] for sums in counts)) for name in relations)
        return math.fsum(each) / max(1, len(relations))


class MicroRelationF1(RelationF1):
    """The F1 of all relations but `no_relation` together: the official score of TACRED (Zhang et
    al. 2017, "Position-aware Attention and Supervised Data Improve Slot Filling").
    """

    score_name = "relation-micro-f1"

    def _f1_of(self, relations: list[str], counts: list[Counter[str]]) -> float:
        return _f1(
            *(sum(n for name, n in sums.items() if name not in NO_RELATION) for sums in counts)
        )


def _without_direction(counts: Counter[Hashable]) -> Counter[str]:
    """The counts of labels by relation: of both directions together."""
    relations: Counter[str] = Counter()
    for label, count in counts.items():
        relations[re.sub(r"\(e[12],e[12]\)$", "", str(label))] += count
    return relations


class Matthews(_Confusion):
    """Matthews' correlation of two or more labels (R_K of Gorodkin 2004); CoLA's measure.

    With n predictions, c of them right, p_k predictions and t_k targets of label k:
    (c n - sum p_k t_k) / sqrt((n^2 - sum p_k^2) (n^2 - sum t_k^2)). Where all predictions, or all
    targets, are one label, it is 0.
    """

    def result(self) -> Score:
        """Between -1 and 1.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.count, "Matthews correlation")
        right, predicted, targets = self._sums()
        n = self.count
        above = right.total() * n - sum(predicted[name] * targets[name] for name in targets)
        spread = [
            n * n - sum(count * count for count in sums.values()) for sums in (predicted, targets)
        ]
        below = math.sqrt(spread[0] * spread[1])  # exactly `above` where all is right
        return self._score("Matthews correlation", above / below if below else 0.0)


def _f1(right: int, predicted: int, targets: int) -> float:
    """The harmonic mean of right / predicted and right / targets; 0 where there is neither."""
    return 2 * right / (predicted + targets) if predicted + targets else 0.0


# ------------------------------------------------------------------------------------------ numbers


Numbers = Sequence[float] | np.ndarray | Tensor


class Pearson:
    """Pearson's correlation, in float64; 16 bytes are kept for each pair."""

    name = "Pearson correlation"

    def __init__(self) -> None:
        self._values = array("d"), array("d")

    def add(self, predictions: Numbers, references: Numbers) -> None:
        """Count predictions with their references, two arrays of one shape.

        Raises:
            RegardError: unequal shapes; a number that is not finite.
        """
        for values, new in zip(self._values, _pair(predictions, references), strict=True):
            values.frombytes(new.tobytes())

    def result(self) -> Score:
        """Between -1 and 1; NaN where predictions or targets are constant, as the signature says.

        Raises:
            RegardError: nothing was added.
        """
        count = len(self._values[0])
        check_any(count, self.name)
        rows = np.stack([self.compared(np.array(values)) for values in self._values])
        rows -= rows[:, :1]  # numbers far from zero lose no digits
        rows -= rows.mean(1, keepdims=True)
        return _correlation(self.name, rows @ rows.T, count)

    @staticmethod
    def compared(values: np.ndarray) -> np.ndarray:
        """What is correlated of one side: (N,) -> (N,)."""
        return values


class Spearman(Pearson):
    """Pearson's correlation of ranks; equal numbers share the mean of their ranks."""

    name = "Spearman correlation"

    @staticmethod
    def compared(values: np.ndarray) -> np.ndarray:
        """Ranks from 1; those of equal numbers are averaged."""
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks: np.ndarray = (counts.cumsum() - (counts - 1) / 2)[inverse]
        return ranks


def _correlation(name: str, products: np.ndarray, count: int) -> Score:
    signature = f"count:{count}"
    variances = dict(zip(("predictions", "targets"), products.diagonal(), strict=True))
    sides = [side for side, variance in variances.items() if variance == 0]
    if sides:
        # No number is right here, and an error would end a training that has just started.
        reason = f"undefined:constant {' and '.join(sides)}"
        return Score(name, math.nan, f"{signature}|{reason}", count, 4)
    value = products[0, 1] / (math.sqrt(products[0, 0]) * math.sqrt(products[1, 1]))
    return Score(name, float(np.clip(value, -1, 1)), signature, count, 4)


def _pair(predictions: Numbers, references: Numbers) -> np.ndarray:
    """Both in float64, flattened: (2, N)."""
    predicted, expected = _array(predictions, "predictions"), _array(references, "references")
    check_equal(predicted.ravel(), expected.ravel(), "predictions", "references")
    return np.stack([predicted.ravel(), expected.ravel()])


def _array(numbers: Any, name: str) -> np.ndarray:
    if isinstance(numbers, Tensor):
        numbers = numbers.detach().double().cpu().numpy()
    values = np.asarray(numbers, dtype=np.float64)
    if not np.isfinite(values).all():
        raise RegardError(f"`{name}` must be finite numbers, but some are infinite or NaN.")
    return values


# --------------------------------------------------------------------------------------------- GLUE


# Each task's metrics in the order in which the benchmark names them.
GLUE: dict[str, tuple[Callable[[], Metric], ...]] = {
    "cola": (Matthews,),
    "sst2": (Accuracy,),
    "mrpc": (Accuracy, partial(F1, "1", labels=("0", "1"))),
    "stsb": (Pearson, Spearman),
    "qqp": (Accuracy, partial(F1, "1", labels=("0", "1"))),
    "mnli-matched": (Accuracy,),
    "mnli-mismatched": (Accuracy,),
    "qnli": (Accuracy,),
    "rte": (Accuracy,),
    "wnli": (Accuracy,),
}


def glue_metrics(task: str) -> list[Metric]:
    """New metrics of a task, to be fed with the same predictions and targets.

    Raises:
        ConfigError: there is no such task; the nearest one is offered.
    """
    return [make() for make in _task(task)]


def glue_average(scores: Mapping[str, Sequence[Score | float]]) -> Score:
    """GLUE's score: the mean over tasks of the mean over each task's metrics; both parts of MNLI
    are metrics of one task.

    scores: each task's results, in one unit; all that its metrics gave. The average is over the
    tasks given, which the signature names: published averages leave out WNLI or not.

    Raises:
        ConfigError: there is no such task.
        RegardError: there is no score.
    """
    check_any(len(scores), "GLUE average")
    parts: dict[str, list[float]] = {}
    for task, results in scores.items():
        _task(task)
        values = [score if isinstance(score, float | int) else score.value for score in results]
        parts.setdefault(task.partition("-")[0], []).extend(values)
    value = math.fsum(math.fsum(values) / len(values) for values in parts.values()) / len(parts)
    order = {task.partition("-")[0]: None for task in GLUE}
    names = ",".join(_shown(name, scores) for name in order if name in parts)
    return Score("GLUE average", value, f"tasks:{names}", len(parts), 4)


def _shown(name: str, scores: Mapping[str, object]) -> str:
    """The task's name; of MNLI, also which part where there is only one."""
    parts = [task for task in scores if task.partition("-")[0] == name]
    return parts[0] if len(parts) == 1 else name


def _task(name: str) -> tuple[Callable[[], Metric], ...]:
    if name not in GLUE:
        parts = [task for task in GLUE if task.startswith(name)]  # of mnli
        raise ConfigError(f"GLUE has no task {name!r}. {nearest(name, parts or GLUE)}")
    return GLUE[name]
