"""Recipes of tests: nested mappings, written as files or planned."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.experiments import runs
from regard.recipe import read
from regard.schema import to_toml

Tables = Mapping[str, Any]


def merged(*tables: Tables) -> dict[str, Any]:
    """The later values in place of the earlier ones; None leaves a value out."""
    whole: dict[str, Any] = {}
    for name, value in ((name, value) for table in tables for name, value in table.items()):
        both = isinstance(value, Mapping) and isinstance(whole.get(name), Mapping)
        whole[name] = merged(whole[name], value) if both else value
    return whole


def written(path: str | Path, *tables: Tables) -> Path:
    """The file of a recipe."""
    Path(path).write_text(to_toml(merged(*tables)))
    return Path(path)


def with_documents(folder: Path, monkeypatch: Any, documents: list[str], *recipe: Any) -> Path:
    """The folder, which has documents in text.txt and a recipe; tests run in it."""
    (folder / "text.txt").write_text("\n\n".join(documents))
    monkeypatch.chdir(folder)
    written(*recipe)
    return folder


def until_learned(task: str, file: str, steps: int, learning_rate: float, **data: Any) -> Tables:
    """A recipe that learns one file by heart, which is its validation and test data, too."""
    return dict(
        task=task,
        data=dict(train=file, valid=file, test=file, **data),
        model=dict(dropout=0.0, attention_dropout=0.0),
        training=dict(
            max_steps=steps,
            schedule=dict(name="constant"),
            optimizer=dict(learning_rate=learning_rate),
            validation=dict(eval_steps=steps),
        ),
    )


def planned(path: str | Path, *tables: Tables) -> runs.TrainingPlan:
    """The plan of a recipe, which is written into the file."""
    return runs.plan(runs.read_recipe(written(path, *tables)))


def trained(path: str | Path, *overrides: str, out: str = "run", quiet: bool = True) -> Any:
    """The loaded model and the result of a training by a recipe."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
        run = runs.train_recipe(read(path, overrides), out=out, progress=False)
    return runs.load(run.folder), run.result
