"""report.html of a finished run: what was trained, curves, scores, samples and attention."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.attention.capture import CapturePoint
from regard.models import described
from regard.tasks.verbs import TaskVerbs
from regard.training import Result
from regard.training.metrics_log import read_events
from regard.visual.attention_record import look, run_encoder
from regard.visual.picture import Picture
from regard.visual.report import ReportSample, RunReport

REPORT = "report.html"


def write_report(folder: Path, task: TaskVerbs, recipe: Any, result: Result) -> Path:
    """Write report.html of a finished run; `task` has its final weights."""
    rows = task.samples(recipe)
    report = RunReport(
        title=recipe.name or folder.name,
        facts=_facts(task, recipe, result),
        scores={recipe.model.name: {k: v for k, v in result.scores.items() if v is not None}},
        events=read_events(folder),
        samples={recipe.model.name: [ReportSample(*row) for row in rows]},
        pictures=_attention(task, recipe, rows),
    )
    return report.save(folder / REPORT)


def _facts(task: TaskVerbs, recipe: Any, result: Result) -> dict[str, str]:
    parameters = sum(weight.numel() for weight in task.model.parameters())
    start = recipe.model.model_dump().get("path")  # of fine-tuning alone
    origin = f", started from {recipe.model.name}" if start else ""
    items = "predicted tokens" if task.items == "tokens" else task.items
    return {
        "task": recipe.task,
        "model": f"{described(task.model)}{origin}, {parameters:,} parameters",
        "tokenizer": f"{task.tokenizer.kind}, {task.tokenizer.vocab_size:,} tokens",
        "data": ", ".join(Path(file).name for file in recipe.data.files()),
        "training": f"{result.update:,} updates, {result.tokens:,} {items}",
        "time": f"{result.seconds:,.0f} s in updates",
        "weights": result.weights,
        "seed": str(recipe.seed),
    }


def _attention(
    task: TaskVerbs, recipe: Any, rows: Sequence[tuple[str, ...]]
) -> list[tuple[str, Picture]]:
    """What the model looks at over the first sample, where it looks at anything."""
    if not rows or not any(isinstance(module, CapturePoint) for module in task.model.modules()):
        return []
    inputs = task.attention_inputs(rows[0])
    with look(task) as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the sample ends with the context is no matter here
        if inputs is not None:
            task.predict(inputs)
        elif (short := _excerpt(task, recipe)) is not None:
            run_encoder(task, [short])
    return [("What it looks at", seen.heads())] if seen.passes else []


def _excerpt(task: TaskVerbs, recipe: Any) -> tuple[str, ...] | None:
    """Of a sample that is too long to be seen whole, as much as can be; None: there is none."""
    found, format = task.attention_excerpt(recipe), task.pieces
    if found is None or format is None or format.too_long(format.encode([found])):
        return None
    return found
