"""One run of a comparison, in a process of its own: trained, tested, its cost measured.

Every few seconds it prints how far it is.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from regard.checkpoints.store import FACTS
from regard.errors import ConfigError
from regard.executors import Json
from regard.experiments.compare.results import OUTCOME, Outcome
from regard.experiments.estimate import estimate
from regard.experiments.recipe_options import read_recipe
from regard.experiments.runs import load, resume, train_recipe
from regard.file_writing import locked, write_text
from regard.progress import clock
from regard.recipe import read
from regard.schema import read_json
from regard.tasks.task import Task
from regard.training import Paused, Result
from regard.training.callbacks import RESULT, Progress, Status
from regard.training.checkpointing import Facts, RunFolder
from regard.training.metrics_log import read_events

SAMPLES = 12  # of the test data, in the report
POLL_INTERVAL = 1.0  # seconds between two checks whether another process has ended


def trained_until(
    folder: str, recipe: str, overrides: Sequence[str], every: float, until: float
) -> dict[str, Json]:
    """The job of a run: train or resume it to a part of its budget; test and measure it at the end.

    until: the part of the budget; 1 is the end.  every: seconds between messages about progress.

    Returns the best validation score so far as "score", None where none is finite, its "goal", and
    "steps", "tokens" and "seconds".
    """
    path, progress = Path(folder), WorkerProgress(every)
    if until >= 1:
        whole = measure(path, recipe, overrides, progress)
        score = whole.goal[2] if math.isfinite(whole.goal[2]) else None
        return _reached(whole.goal[:2], score, whole.steps, whole.tokens, whole.seconds)
    wait_for_other_process(path)
    try:
        if (path / "recipe.toml").exists():
            run = resume(path, progress=progress, stop_after_fraction=until)
        else:
            raw = read(recipe, overrides)
            run = train_recipe(raw, path, progress=progress, stop_after_fraction=until)
    except Paused as paused:
        return _reached(paused.goal, paused.best, paused.step, paused.tokens, None)
    task: Any = load(path)  # it ended before `until`: `patience` validations without a better score
    result = run.result
    return _reached(
        task.goal, result.scores.get(task.goal[0]), result.step, result.tokens, result.seconds
    )


def _reached(
    goal: Sequence[str], score: float | None, steps: int, tokens: int, seconds: float | None
) -> dict[str, Json]:
    numbers = {"steps": steps, "tokens": tokens, "seconds": seconds}
    return {"goal": [*goal], "score": score, **numbers}


def wait_for_other_process(folder: Path) -> None:
    """Wait while another process trains in this folder.

    It can be the job of a command that was killed: on a cluster its jobs end later than it does.
    """
    told = False
    while folder.is_dir():
        try:
            with locked(folder, "training in"):
                return
        except ConfigError as error:
            if not told:
                print(f"{error} This one waits.", file=sys.stderr, flush=True)
            told = True
        time.sleep(POLL_INTERVAL)


def measure(
    folder: Path, path: str, overrides: Sequence[str], progress: bool | Progress
) -> Outcome:
    """Train in this folder, or resume it; then test, and write the outcome into it."""
    wait_for_other_process(folder)
    finished = (folder / RESULT).exists()
    if (folder / "recipe.toml").exists():
        result = resume(folder, progress=progress).result
    else:
        result = train_recipe(read(path, overrides), folder, progress=progress).result
    memory = None if finished else peak_memory()
    cost = estimate(folder / "recipe.toml", measure=False).totals()
    task: Any = load(folder)
    recipe: Any = read_recipe(folder / "recipe.toml")
    _write("100% · testing")
    scores, samples = _test_scores(task, recipe, result), task.test_samples(recipe)
    name, direction = task.goal
    items = task.items
    outcome = Outcome(
        scores=scores,
        goal=(name, direction, result.scores.get(name)),
        curves=curves_of(folder, items),
        steps=result.step,
        tokens=result.tokens,
        seconds=result.seconds,
        parameters=cost["parameters"],
        flops=cost["flops_per_item"] * result.tokens,
        memory=memory,
        precision=_precision(folder),
        threads=recipe.training.threads or torch.get_num_threads(),
        samples=samples[:SAMPLES],
        items=items,
    )
    write_text(folder / OUTCOME, json.dumps(asdict(outcome)) + "\n")
    _write(f"100% · {outcome.quality:.2f}, {result.seconds:.0f} s of training")
    return outcome


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


def _precision(folder: Path) -> str:
    """The precision that the training chose where the recipe left it open."""
    *_, newest = RunFolder(folder).saved()
    return read_json(newest / FACTS, Facts, finite=False).precision


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
    """Progress for the process that waits; the results repeat what is only said."""

    def __init__(self, every: float):
        self.every = every

    def show(self, status: Status) -> None:
        rate, left = f"{status.tokens_per_s:,.0f} {status.items}/s", f"{clock(status.left)} left"
        _write(f"{status.fraction:.0%} · loss {status.loss:.2f} · {rate} · {left}")

    def say(self, message: str) -> None:
        pass

    def warn(self, message: str) -> None:
        print(f"Warning: {message}", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


def _write(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
