"""Our side: a recipe over the same rows, trained as `regard train` does, checkpoints included."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks.finetuning.conditions import Recipe, Task
from benchmarks.finetuning.rows import Row
from regard import training
from regard.experiments.runs import plan, read_recipe, save


class Side:
    """One run."""

    versions = {"regard": regard.__version__, "torch": torch.__version__}

    def __init__(self, task: Task, recipe: Recipe, seed: int, encoder: Path) -> None:
        self.task, self.recipe, self.seed, self.encoder = task, recipe, seed, encoder
        self.folder = tempfile.TemporaryDirectory()
        self.tagging = task.columns is None

    def encode(self, rows: list[Row]) -> int:
        """Read the rows as a user's file is read; gives the tokens of an epoch."""
        path = Path(self.folder.name)
        with (path / "train.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(self._record(row)) + "\n" for row in rows)
        (path / "recipe.toml").write_text(self._recipe(len(rows), len(rows[0].texts)))
        self.options: Any = read_recipe(path / "recipe.toml")
        self.plan = plan(self.options)
        return len(self.plan.task.parts.train.inputs.ids.ids)

    def train(self) -> None:
        """All epochs, with the checkpoint before the first update and the one after the last."""
        training.train(
            self.plan.task,
            self.options.training,
            Path(self.folder.name) / "run",
            seed=self.seed,
            identity=self.plan.identity(),
            save=lambda model, path: save(self.plan.task, path),
            progress=False,
        )

    def predict(self, rows: list[Row]) -> tuple[list[Any], int]:
        """Class names, numbers, or tags of each word; every word is seen."""
        task = self.plan.task
        if self.tagging:
            return [list(tags) for tags in task.predict([list(row.texts) for row in rows])], 0
        return list(task.predict([row.texts for row in rows], too_long="truncate")), 0

    def _record(self, row: Row) -> dict[str, Any]:
        if self.tagging:
            return {"words": row.texts, "tags": row.label}
        return {**{f"text{i}": text for i, text in enumerate(row.texts)}, "label": row.label}

    def _recipe(self, rows: int, texts: int) -> str:
        r = self.recipe
        updates = math.ceil(rows / r.batch) * r.epochs
        kind = "tagging" if self.tagging else "classification" if self.task.labels else "regression"
        columns = [*(f"text{i}" for i in range(texts)), "label"]
        named = "" if self.tagging else f"columns = {json.dumps(columns)}"
        return f"""
task = "{kind}"
seed = {self.seed}
[model]
path = {json.dumps(str(self.encoder))}
[data]
train = "train.jsonl"
max_length = {r.max_length}
batch_size = {r.batch}
{named}
[training]
epochs = {r.epochs}
precision = "{"bfloat16" if r.precision == "bf16" else "float32"}"
threads = {torch.get_num_threads()}
[training.optimizer]
name = "adamw"
learning_rate = {r.learning_rate}
betas = {list(r.betas)}
eps = {r.epsilon}
weight_decay = {r.weight_decay}
max_grad_norm = {r.clip}
[training.schedule]
name = "linear"
warmup = {round(r.warmup * updates)}
"""
