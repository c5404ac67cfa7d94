"""Names of earlier versions, and what they are called now.

A recipe or an option that a user types with an old name is an error, which gives the new name. What
Regard wrote itself with old names is translated when it is read: the recipe and the checkpoints of
a run, and config.json and the weights of a model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

# Dotted names of options in recipes.
OPTIONS = {
    "data.rows": "data.batch_size",
    "data.steps": "data.sequence_length",
    "data.batch_rows": "data.batch_size",
    "data.batch_tokens": "data.max_tokens_per_batch",
    "data.max_tokens": "data.max_length",
    "data.cache": "data.token_cache",
    "objective.smoothing": "objective.label_smoothing",
    "objective.language_modeling": "objective.aux_lm_weight",
    "model.features.depth": "model.features.lstm_layers",
    "training.recompute": "training.activation_checkpointing",
}
# Values of options in recipes, by the option's name now.
VALUES = {
    "task": {"masked-words": "fill-mask"},
    "training.schedule.name": {"vaswani": "noam"},
}
# Kinds of heads, in config.json and in the names of parameters.
HEADS = {"words": "masked_lm", "next": "next_sentence", "choice": "multiple_choice"}
# Options of a task, in `regard` of config.json.
TASK_OPTIONS = {"max_tokens": "max_length", "smoothing": "label_smoothing"}
# Options of models that only Regard reads, in config.json: model -> old -> new.
MODEL_OPTIONS = {"features": {"depth": "lstm_layers"}}
# What a model carries from batch to batch, in the checkpoints of a run.
CARRIED = {"carry/places": "carry/segment_numbers"}

_HEAD = re.compile(rf"(^|/)heads\.({'|'.join(HEADS)})\.")
Value = TypeVar("Value")


def recipe(tables: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """The tables of a recipe that Regard wrote, with the options and values of this version.

    section: the dotted name of the section that `tables` is, with a dot behind it.
    """
    found = {}
    for name, value in tables.items():
        new = OPTIONS.get(section + name, section + name)
        if isinstance(value, Mapping):
            value = recipe(value, f"{new}.")
        elif isinstance(value, str):
            value = VALUES.get(new, {}).get(value, value)
        found[new.removeprefix(section)] = value
    return found


def config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a config.json, with the names of this version where Regard wrote it."""
    about = config.get("regard")
    if not isinstance(about, Mapping):
        return dict(config)
    own = _renamed(about, TASK_OPTIONS)
    if isinstance(task := about.get("task"), str):
        own["task"] = VALUES["task"].get(task, task)
    if isinstance(heads := about.get("heads"), Mapping):
        own["heads"] = _renamed(heads, HEADS)
    return _renamed(config, MODEL_OPTIONS.get(str(about.get("model")), {})) | {"regard": own}


def parameters(values: Mapping[str, Value]) -> dict[str, Value]:
    """Values by the name of a parameter, such as `heads.next.output.weight`, under its name now.

    A name may have a prefix that ends in "/", as in the optimizer's state and the carried memory.
    """
    return {
        _HEAD.sub(lambda found: f"{found[1]}heads.{HEADS[found[2]]}.", name): value
        for name, value in _renamed(values, CARRIED).items()
    }


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in values.items()}
