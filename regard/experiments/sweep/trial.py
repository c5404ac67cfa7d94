"""One run of a sweep, in a process of its own: trained to a part of its budget, or to the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.executors import Json
from regard.experiments.compare.worker import WorkerProgress, measure, wait_for_other_process
from regard.experiments.runs import load, resume, train_recipe
from regard.recipe import read
from regard.training import Paused


def trained_until(
    folder: str, recipe: str, overrides: Sequence[str], every: float, until: float
) -> dict[str, Json]:
    """The job of a run: train or resume it to a part of the budget; test it at the end.

    until: the part of the budget; 1 is the end.  every: seconds between messages about progress.

    Returns the best validation score so far as "score", its "goal", "steps" and "tokens".
    """
    path, shown = Path(folder), WorkerProgress(every)
    if until >= 1:
        whole = measure(path, recipe, overrides, shown)
        return _reached(whole.goal[:2], whole.goal[2], whole.steps, whole.tokens)
    wait_for_other_process(path)
    try:
        if (path / "recipe.toml").exists():
            run = resume(path, progress=shown, stop_after_fraction=until)
        else:
            raw = read(recipe, overrides)
            run = train_recipe(raw, path, progress=shown, stop_after_fraction=until)
    except Paused as paused:
        return _reached(paused.goal, paused.best, paused.step, paused.tokens)
    task: Any = load(path)  # it ended before `until`: `patience` validations without a better score
    return _reached(task.goal, run.result.best, run.result.step, run.result.tokens)


def _reached(goal: Sequence[str], score: float | None, steps: int, tokens: int) -> dict[str, Json]:
    return {"goal": [*goal], "score": score, "steps": steps, "tokens": tokens}
