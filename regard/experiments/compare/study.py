"""A study: named trials in a folder, each a training in its run folder, that an executor runs.

    results.jsonl    a row for each run that has ended, from which the same command goes on

`compare`, `cross_validate` and `sweep` are studies: their trials differ in the recipe, the fold of
the training data, or the values of options.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import ConfigError, RegardError, check_at_least
from regard.executors import Job, Json
from regard.executors.protocol import Executor, ExecutorOptions
from regard.experiments.compare.conditions import check_same_run
from regard.experiments.compare.workers import run_jobs

RESULTS = "results.jsonl"
ERROR = "error"
FUNCTION = "regard.experiments.compare.worker:trained_until"
Row = dict[str, Any]


def run_name(trial: str, seed: int) -> str:
    """The name of the folder of a run: NAME-seed1."""
    return f"{trial}-seed{seed}"


@dataclass(frozen=True)
class RunOptions:
    """How the runs of a study are trained: the seeds of each trial, and where, as of
    `regard.compare`.

    Raises:
        ConfigError: there are no seeds, or one twice; or no worker.
    """

    seeds: tuple[int, ...] = (1,)
    executor: str | ExecutorOptions = "local"
    workers: int = 1
    gpus: int = 0
    progress: bool = True

    def __post_init__(self) -> None:
        check_at_least(1, workers=self.workers)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(
                f"`seeds` must be different numbers, at least one, but is {self.seeds!r}."
            )


@dataclass(frozen=True)
class StudyRun:
    """A training of a study.

    recipe: the checked recipe.  path, overrides: where it is read from.  params: the values that
    make the trial.
    """

    trial: str
    folder: Path
    recipe: Any
    path: Path
    overrides: tuple[str, ...]
    seed: int | None = None
    params: Mapping[str, Json] = field(default_factory=dict)

    def job(self, until: float, every: float, gpus: int) -> Job:
        """The job that trains it to a part of its budget; every: seconds between messages."""
        arguments: dict[str, Json] = {
            "folder": str(self.folder),
            "recipe": str(self.path),
            "overrides": self.overrides,
            "every": every,
            "until": until,
        }
        return Job(FUNCTION, arguments, self.folder.name, self.recipe.training.threads, gpus)


class ResultLog:
    """The rows of results.jsonl: what each run has reached at each part of its budget."""

    def __init__(self, folder: Path):
        self.path = folder / RESULTS
        self.rows: list[Row] = []
        if self.path.exists():
            whole, _, torn = self.path.read_bytes().rpartition(b"\n")
            self.rows = [json.loads(line) for line in whole.splitlines()]
            if torn:  # the process was killed while it wrote this line
                os.truncate(self.path, self.path.stat().st_size - len(torn))

    def append(self, row: Row) -> None:
        """Write a row, and wait until it is on the disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def find(self, run: str, until: float) -> Row | None:
        """The newest row of a run at this part of its budget; None where there is none."""
        rows = (row for row in reversed(self.rows) if (row["run"], row["until"]) == (run, until))
        return next(rows, None)


def train_runs(
    runs: Sequence[StudyRun],
    log: ResultLog,
    executor: Executor,
    *,
    until: float = 1.0,
    every: float = 1e9,
    gpus: int = 0,
    retry: bool = False,
) -> Generator[tuple[StudyRun, Row], None, None]:
    """Train runs to a part of their budget; each with its row, as they end. Those that have ended
    before come first. A row with `error` is that of a run that has failed.

    retry: whether those that have ended before are measured again.

    Raises:
        ConfigError: the folder of a run holds another one.
        Interrupted: after Ctrl-C; the runs in progress are saved.
    """
    left: dict[str, StudyRun] = {}
    for run in runs:
        check_same_run(run.folder, run.recipe)
        row = log.find(run.folder.name, until)
        if row and not retry:
            yield run, row
        else:
            left[str(run.folder)] = run
    jobs = [run.job(until, every, gpus) for run in left.values()]
    with closing(run_jobs(executor, jobs)) as results:
        for job, future in results:
            run = left[str(job.arguments["folder"])]
            row = {"run": run.folder.name, "trial": run.trial, "params": dict(run.params)}
            row |= {"seed": run.seed, "until": until}
            try:
                value: Any = future.result()
                row |= value
            except RegardError as error:
                row[ERROR] = str(error)
            log.append(row)
            yield run, row


def cv_results(
    trials: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Sequence[float]]]],
    splits: int,
    better: str,
) -> dict[str, list[Any]]:
    """The columns of scikit-learn's `cv_results_`: `params`, `param_NAME`, and of each score
    `splitN_NAME`, `mean_NAME`, `std_NAME` and `rank_NAME`; with `trial` before them.

    trials: of each its name, its values, and its scores by name, one for each split (a seed or a
        fold); NaN stands where there is none.
    better: "max" or "min", of the first score.
    """
    params = dict.fromkeys(name for _, values, _ in trials for name in values)
    columns: dict[str, list[Any]] = {
        "trial": [name for name, _, _ in trials],
        "params": [dict(values) for _, values, _ in trials],
        **{f"param_{name}": [values.get(name) for _, values, _ in trials] for name in params},
    }
    for number, name in enumerate(dict.fromkeys(n for _, _, scores in trials for n in scores)):
        table = np.full((len(trials), splits), math.nan)
        for row, (_, _, scores) in zip(table, trials, strict=True):
            found = scores.get(name, ())
            row[: len(found)] = found
        if np.isnan(table).all():
            continue
        means = table.mean(1)
        columns |= {f"split{i}_{name}": table[:, i].tolist() for i in range(splits)}
        columns |= {f"mean_{name}": means.tolist(), f"std_{name}": table.std(1).tolist()}
        if number == 0:
            ordered = np.where(np.isnan(means), math.inf, -means if better == "max" else means)
            columns[f"rank_{name}"] = [1 + int((ordered < one).sum()) for one in ordered]
    return columns
