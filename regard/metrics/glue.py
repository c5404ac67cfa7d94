"""GLUE's nine tasks, each with its own metrics, and the benchmark's average (Wang et al. 2019).

| task | metrics |
|---|---|
| `cola` | Matthews correlation |
| `sst2`, `mnli-matched`, `mnli-mismatched`, `qnli`, `rte`, `wnli` | accuracy |
| `mrpc`, `qqp` | accuracy, F1 of "1" |
| `stsb` | Pearson's and Spearman's correlation |
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from regard.errors import ConfigError, RegardError
from regard.metrics.correlation import Pearson, Spearman
from regard.metrics.labels import F1, Accuracy, Matthews
from regard.metrics.score import Metric, Score, check_any
from regard.suggest import nearest

# Each task's metrics in the order in which the benchmark names them.
TASKS: dict[str, tuple[Callable[[], Metric], ...]] = {
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


def metrics(task: str) -> list[Metric]:
    """New metrics of a task, to be fed with the same predictions and targets.

    Raises:
        ConfigError: there is no such task; the nearest one is offered.
    """
    return [make() for make in _task(task)]


def average(scores: Mapping[str, Sequence[Score | float]]) -> Score:
    """GLUE's score: the mean over tasks of the mean over each task's metrics; both parts of MNLI
    are metrics of one task.

    scores: each task's results, in one unit; all that its metrics gave. The average is over the
    tasks given, which the signature names: published averages leave out WNLI or not.

    Raises:
        ConfigError: there is no such task.
        RegardError: no task; or not as many scores as the task has metrics.
    """
    check_any(len(scores), "GLUE average")
    parts: dict[str, list[float]] = {}
    for task, results in scores.items():
        count = len(_task(task))
        if len(results) != count:
            raise RegardError(f"{task} has {count} metrics, but {len(results)} scores are given.")
        values = [score if isinstance(score, float | int) else score.value for score in results]
        parts.setdefault(task.partition("-")[0], []).extend(values)
    value = math.fsum(math.fsum(values) / len(values) for values in parts.values()) / len(parts)
    order = {task.partition("-")[0]: None for task in TASKS}
    names = ",".join(_shown(name, scores) for name in order if name in parts)
    return Score("GLUE average", value, f"tasks:{names}", len(parts), 4)


def _shown(name: str, scores: Mapping[str, object]) -> str:
    """The task's name; of MNLI, also which part where there is only one."""
    parts = [task for task in scores if task.partition("-")[0] == name]
    return parts[0] if len(parts) == 1 else name


def _task(name: str) -> tuple[Callable[[], Metric], ...]:
    if name not in TASKS:
        parts = [task for task in TASKS if task.startswith(name)]  # of mnli
        raise ConfigError(f"GLUE has no task {name!r}. {nearest(name, parts or TASKS)}")
    return TASKS[name]
