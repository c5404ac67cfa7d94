"""One run of a study, in a process of its own: trained, tested, its cost measured.

Every few seconds it prints how far it is.
"""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard.checkpoints.store import FACTS
from regard.errors import ConfigError
from regard.experiments.estimate import estimate
from regard.experiments.recipe_options import read_recipe
from regard.experiments.results import Outcome
from regard.experiments.runs import load, resume, train_recipe
from regard.file_writing import locked
from regard.progress import clock
from regard.recipe import read
from regard.schema import read_json
from regard.tasks.task import Task
from regard.training import Paused, Result
from regard.training.callbacks import RESULT, Status
from regard.training.checkpointing import Facts, RunFolder
from regard.training.metrics_log import read_events

SAMPLES = 12  # of the test data, in the report
POLL_INTERVAL = 1.0  # seconds between two checks whether another process has ended
YEAR = 3e7  # seconds


def trained_until(
    folder: str,
    recipe: str,
    overrides: Sequence[str],
    every: float,
    until: float,
    device: str | None,
) -> dict[str, Any]:
    """The job of a run: train or resume it to a part of its budget; test and measure it at the end.

    until: the part of the budget; 1 is the end.  every: seconds between messages about progress.

    Returns the best validation score so far as "score", None where none is finite, its "goal",
    "steps" and "tokens"; at the end also "outcome", the fields of `Outcome`.
    """
    path, progress = Path(folder), WorkerProgress(every)
    _wait_for_other_process(path)
    finished, stop = (path / RESULT).exists(), until if until < 1 else None
    train = partial(train_recipe, read(recipe, overrides), path, device)
    if (path / "recipe.toml").exists():
        train = partial(resume, path, device=device)
    try:
        result = train(progress=progress, stop_after_fraction=stop).result
    except Paused as paused:
        return _reached(paused.goal, paused.best, paused.step, paused.tokens)
    memory = None if finished else peak_memory()
    task: Any = load(path, device=device)
    score = result.scores.get(task.goal[0])
    reached = _reached(task.goal, score, result.step, result.tokens)
    if until < 1:  # it ended before: `patience` validations without a better score
        return reached
    outcome = _measured(path, task, result, memory)
    progress.write(f"100% · {outcome.quality:.4g}, {result.seconds:.0f} s of training")
    return reached | {"outcome": asdict(outcome)}


def _reached(goal: Sequence[str], score: float | None, steps: int, tokens: int) -> dict[str, Any]:
    return {"goal": [*goal], "score": score, "steps": steps, "tokens": tokens}


def _wait_for_other_process(folder: Path) -> None:
    """Wait while another process trains in this folder.

    It can be the job of a command that was killed: on a cluster its jobs end later than it does.
    """
    while folder.is_dir():
        try:
            with locked(folder, "training in"):
                return
        except ConfigError as error:
            print(f"{error} This one waits.", file=sys.stderr, flush=True)
        time.sleep(POLL_INTERVAL)


def _measured(folder: Path, task: Any, result: Result, memory: int | None) -> Outcome:
    """What a finished run has reached, and what it cost."""
    recipe: Any = read_recipe(folder / "recipe.toml")
    cost = estimate(folder / "recipe.toml", measure=False).totals()
    name, direction = task.goal
    *_, newest = RunFolder(folder).saved()
    return Outcome(
        scores=_test_scores(task, recipe, result),
        goal=(name, direction, result.scores.get(name)),
        curves=curves_of(folder, task.items),
        steps=result.step,
        tokens=result.tokens,
        seconds=result.seconds,
        parameters=cost["parameters"],
        flops=cost["flops_per_item"] * result.tokens,
        memory=memory,
        precision=read_json(newest / FACTS, Facts, finite=False).precision,
        threads=recipe.training.threads or torch.get_num_threads(),
        samples=task.test_samples(recipe)[:SAMPLES],
        items=task.items,
        valid={**result.scores},
    )


def _test_scores(task: Task, recipe: Any, result: Result) -> list[dict[str, Any]]:
    """Those of the training; they are measured where it ended without them."""
    if result.test_scores:
        return [
            {"name": name, "value": math.nan if value is None else value, "signature": signature}
            for name, signature in result.test_signatures.items()
            for value in [result.test_scores[name]]
        ]
    return [
        {"name": one.name, "value": one.value, "signature": one.signature}
        for one in task.test(recipe)
    ]


def curves_of(folder: Path, items: str) -> dict[str, list[tuple[float, float]]]:
    """The losses and scores of metrics.jsonl against the items seen."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for event in read_events(folder):
        for key, value in event.items():
            if key.startswith(("train/", "valid/")) and value is not None and items in event:
                curves.setdefault(key, []).append((event[items], value))
    return curves


def peak_memory() -> int:
    """Peak memory of this process in bytes: of the GPU, where it has used one."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:  # on Linux getrusage includes the peak of the process that started this one
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class WorkerProgress:
    """Progress for the process that waits; the results repeat what is only said.

    every: seconds between two lines; a year means none.
    """

    def __init__(self, every: float):
        self.every = every

    def write(self, text: str) -> None:
        """A line that tells how far the run is."""
        if self.every < YEAR:
            print(text, file=sys.stderr, flush=True)

    def show(self, status: Status) -> None:
        rate, left = f"{status.tokens_per_s:,.0f} {status.items}/s", f"{clock(status.left)} left"
        self.write(f"{status.fraction:.0%} · loss {status.loss:.2f} · {rate} · {left}")

    def say(self, message: str) -> None:
        pass

    def warn(self, message: str) -> None:
        print(f"Warning: {message}", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass
