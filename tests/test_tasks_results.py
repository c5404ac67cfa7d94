"""What `regard.tasks` gives is what it gave before: tests/results/tasks.json.

The tasks of tests/every_task.py have weights that are not drawn, and compute in double precision.
"""

from __future__ import annotations

import tomllib
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import every_task
import torch
from stored_results import check, each_section
from test_data_results import picture, tokenizer

from regard.tasks import task_class
from regard.visual.attention_record import look

__all__ = ["picture", "tokenizer"]  # for statements


@cache
def tiny_task(name: str) -> Any:
    """A task of tests/every_task.py with weights of which no two are alike."""
    with torch.random.fork_rng():  # what is drawn next does not depend on the first call
        torch.manual_seed(1)
        return filled(every_task.MAKERS[name]())


def trained(name: str) -> list[Any]:
    """With what the training of a small recipe begins, and its scores; without dropout."""
    recipes = tomllib.loads((Path(__file__).parent / "options/recipes.toml").read_text())
    Path("recipes").mkdir(exist_ok=True)
    for file, text in recipes["files"].items():
        Path("recipes", file).write_text(text)
    made, recipe = every_task.MAKERS[name](), {**recipes["recipes"][name], "task": name}
    recipe.pop("teacher", None)
    kind = task_class(name)
    options = kind.Recipe.model_validate(recipe, context={"folder": Path("recipes")})
    learning = filled(kind.from_recipe(options, made.module, made.tokenizer))
    batches = list(islice(learning.train_batches(), 2))
    learning.module.training = True  # not that of its parts, which drop out
    losses = learning.losses(batches[0], None)[0]
    counts = learning.counts(batches[0])
    example = kind.example(options, 5) if hasattr(kind, "example") else None
    learning.module.training = False
    scores, facts = learning.validate(), [learning.settings(), learning.notes()]
    return [batches, counts, losses, example, scores, facts, learning.samples(options)]


@torch.no_grad()
def filled(made: Any) -> Any:
    """The task in double precision, with weights that are not drawn."""
    for n, weight in enumerate(made.module.eval().double().parameters()):
        angles = 4.76 + 0.7 * n + 0.618 * torch.arange(weight.numel(), dtype=torch.float64) ** 2
        norm = bool((weight == 1).all())
        weight.copy_(norm + 0.6 * angles.sin().view_as(weight))
    return made


def looked(model: Any, method: str, *items: Any, **options: Any) -> list[Any]:
    """The labels and the weights of the attention in a call of a method."""
    with look(model) as record:
        getattr(model, method)(*items, **options)
    return record.passes


@each_section("tasks")
def test_statements_give_what_they_gave_before(section):
    check("tasks", section)
