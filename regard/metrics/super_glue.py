"""SuperGLUE's eight tasks, each with its metrics, and the benchmark's average (Wang et al. 2019).

| task | metrics |
|---|---|
| `boolq`, `copa`, `rte`, `wic`, `wsc` | accuracy |
| `cb` | accuracy, the mean of the F1 of its three labels |
| `multirc` | F1 over all answers ("F1a"), and how many questions have all answers judged right |
| `record` | F1 of words and exact match with the best of the right entities |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from regard.errors import ConfigError, RegardError
from regard.metrics.labels import F1, Accuracy, MacroF1
from regard.metrics.score import Score
from regard.metrics.squad import SQuAD
from regard.suggest import nearest

Predicted = Sequence[str]
Right = Sequence[Sequence[str]]  # the right choices of each question
Groups = Sequence[str]


def _accuracy(predicted: Predicted, right: Right, groups: Groups) -> list[Score]:
    metric = Accuracy()
    metric.add(predicted, [choices[0] for choices in right])
    return [metric.result()]


def _inference(predicted: Predicted, right: Right, groups: Groups) -> list[Score]:
    metric = MacroF1(("entailment", "contradiction", "neutral"))
    metric.add(predicted, [choices[0] for choices in right])
    return [*_accuracy(predicted, right, groups), metric.result()]


def _answers(predicted: Predicted, right: Right, groups: Groups) -> list[Score]:
    """Khashabi et al. 2018, section 5: F1 over all answers, and exact match of whole questions."""
    metric, all_right = F1("true", labels=("false", "true")), dict.fromkeys(groups, True)
    metric.add(predicted, [choices[0] for choices in right])
    for choice, choices, group in zip(predicted, right, groups, strict=True):
        all_right[group] &= choice == choices[0]
    count = len(all_right)
    exact = Score("exact match", sum(all_right.values()) / count, f"count:{count}", count, 4)
    return [metric.result(), exact]


def _entities(predicted: Predicted, right: Right, groups: Groups) -> list[Score]:
    """Zhang et al. 2018, section 4.1: as SQuAD's, of the best right answer; here from 0 to 1."""
    metric = SQuAD()
    metric.add(list(predicted), [list(choices) for choices in right])
    score, count = metric.result(), len(predicted)
    values = {"F1": score.value / 100, "exact match": score.exact / 100}
    return [Score(name, value, f"count:{count}", count, 4) for name, value in values.items()]


# The metrics of each task, in the order in which the benchmark names them.
TASKS: dict[str, Callable[[Predicted, Right, Groups], list[Score]]] = {
    "boolq": _accuracy,
    "cb": _inference,
    "copa": _accuracy,
    "multirc": _answers,
    "record": _entities,
    "rte": _accuracy,
    "wic": _accuracy,
    "wsc": _accuracy,
}


def scores(task: str, predicted: Predicted, right: Right, groups: Groups) -> list[Score]:
    """The scores of a task, from 0 to 1.

    predicted: the chosen one of each question.  right: the right choices of each.  groups: of
    MultiRC, the question that each belongs to.

    Raises:
        ConfigError: there is no such task.
        RegardError: there are no predictions, or not as many as questions.
    """
    if len(predicted) != len(right) or len(groups) != len(right):
        raise RegardError(
            f"{len(predicted)} predictions, {len(right)} answers and {len(groups)} groups are "
            "given, but there must be as many."
        )
    if not predicted:
        raise RegardError("The scores of no question are not defined.")
    return _task(task)(predicted, right, groups)


def average(results: Mapping[str, Sequence[Score | float]]) -> float:
    """SuperGLUE's score: the mean over tasks of the mean over each task's metrics.

    Raises:
        ConfigError: there is no such task.
        RegardError: there is no task, or one has no scores.
    """
    means = []
    for name, task_scores in results.items():
        _task(name)
        if not task_scores:
            raise RegardError(f"{name} has no scores.")
        values = [score if isinstance(score, float | int) else score.value for score in task_scores]
        means.append(math.fsum(values) / len(values))
    if not means:
        raise RegardError("The average over no task is not defined.")
    return math.fsum(means) / len(means)


def _task(name: str) -> Callable[[Predicted, Right, Groups], list[Score]]:
    if name not in TASKS:
        raise ConfigError(f"There is no task {name!r} of SuperGLUE. {nearest(name, TASKS)}")
    return TASKS[name]
