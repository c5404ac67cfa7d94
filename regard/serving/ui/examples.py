"""Texts with which the views of a model begin: some of its own validation data."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import RegardError
from regard.serving.problems import Problem

if TYPE_CHECKING:
    from regard.serving.models import ServedModels
    from regard.tasks.task import Task

NEUTRAL = (
    "The animal didn't cross the street because it was too tired.",
    "She put the keys on the table and forgot them.",
    "Tokenizers split unbelievably rare words, such as tokenization.",
)
LINES = 3  # of a language model's data
SHORTEST, LONGEST = 40, 300  # characters of a line, of an example


class Examples:
    """The examples of each model that is served.

    folders: of the models, by their names; a run or its `model` knows the data of the training.
    """

    def __init__(self, folders: Mapping[str, Path] | None = None):
        self.folders = dict(folders or {})
        self.own: dict[str, list[tuple[str, ...]]] = {}

    def read(self, models: ServedModels) -> None:
        """Read the examples of all models."""
        for name, served in models.all.items():
            folder = self.folders.get(name)
            self.own[name] = [] if folder is None else _validation_texts(served.task, folder)

    def of(self, name: str) -> dict[str, Any]:
        """The examples of a model: a text, or two of a pair; and whether they are its own.

        Raises:
            Problem: 404 where there is no such model.
        """
        if name not in self.own:
            message = f"This server has no model {name!r:.80}."
            raise Problem(404, message, "model_not_found", "model")
        own = self.own[name]
        return {"model": name, "own": bool(own), "texts": own or [(text,) for text in NEUTRAL]}


def _validation_texts(task: Task, folder: Path) -> list[tuple[str, ...]]:
    """The first validation texts of the run in a folder; none where it or its data is not there."""
    from regard.experiments.recipe_options import read_recipe

    runs = [one for one in (folder, folder.resolve().parent) if (one / "recipe.toml").is_file()]
    try:
        recipe = read_recipe(runs[0] / "recipe.toml") if runs else None
        inputs = [] if recipe is None else [*_lines(task, recipe), *task.attention_inputs(recipe)]
        inputs = [one for one in inputs if not task.over_limit([one])]
        excerpt = None if inputs or recipe is None else task.attention_excerpt(recipe)
    except (RegardError, OSError):  # the data has been moved, for instance
        return []
    found = [_texts(one) for one in (*inputs, *([] if excerpt is None else [excerpt]))]
    return [texts for texts in found if any(texts) and sum(map(len, texts)) <= LONGEST]


def _lines(task: Task, recipe: Any) -> list[str]:
    """The beginnings of some validation lines, for a language model."""
    if task.name != "language-modeling":
        return []
    lines = (line for line in recipe.data.records("valid").texts() if len(line) >= SHORTEST)
    return [line[:LONGEST].strip() for line in islice(lines, LINES)]


def _texts(inputs: Any) -> tuple[str, ...]:
    """What a task reads as one or two texts: words, which a list holds, are joined."""
    if isinstance(inputs, str):
        return (inputs,)
    return (" ".join(inputs),) if isinstance(inputs, list) else tuple(inputs)
