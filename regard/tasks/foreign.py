"""Which task a folder is for that another library wrote: its heads and its labels say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import ConfigError
from regard.models.headed import Headed

# kind of head -> task, the first that a model has decides
TASK_OF = {
    "classes": "classification",
    "tags": "tagging",
    "span": "question-answering",
    "choice": "multiple-choice",
    "words": "masked-words",
    "next": "next-sentence",
}


def task_of(model: Any, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of a task and its settings, for a model and the config.json that it came with.

    Raises:
        ConfigError: its labels are not what its head answers.
    """
    if not isinstance(model, Headed):
        if getattr(model, "continues", False):
            return "language-modeling", {}
        return "translation", {}
    kind = next((kind for kind in TASK_OF if kind in model.heads), None)
    if kind is None:
        return "embedding", {}
    outputs = getattr(model.heads[kind], "outputs", 0)
    if kind == "classes" and _is_number(config, outputs):
        return "regression", {}
    labels = {"labels": labels_of(config, outputs)} if kind in ("classes", "tags") else {}
    return TASK_OF[kind], labels


def labels_of(config: Mapping[str, Any], outputs: int) -> list[str]:
    """The labels' names in the order of their numbers; LABEL_0 and so on where none are given.

    Raises:
        ConfigError: a number has no name, or two labels have one name.
    """
    named = {int(number): str(name) for number, name in (config.get("id2label") or {}).items()}
    if not named:
        return [f"LABEL_{i}" for i in range(outputs)]
    labels = [named.get(i) for i in range(outputs)]
    if len(named) != outputs or None in labels or len(set(labels)) != outputs:
        raise ConfigError(
            f"config.json: `id2label` must name each of the labels 0 to {outputs - 1} once, "
            f"but is {named}."
        )
    return [str(label) for label in labels]


def names_in(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names that config.json gives to labels, in the order of their numbers."""
    named = {int(number): str(name) for number, name in (config.get("id2label") or {}).items()}
    return tuple(named[number] for number in sorted(named))


def _is_number(config: Mapping[str, Any], outputs: int) -> bool:
    problem = config.get("problem_type")
    if problem not in (None, "regression", "single_label_classification"):
        raise ConfigError(
            f"config.json: `problem_type` must be regression or single_label_classification, but "
            f"is {problem!r}: no task here answers several labels at once."
        )
    if problem == "regression" and outputs != 1:
        raise ConfigError(f"Regression here gives one number, but this head gives {outputs}.")
    if problem == "single_label_classification" and outputs == 1:
        raise ConfigError(
            "config.json: `problem_type` is single_label_classification, but the head has one "
            "answer, and a class is one of at least two. For a number it must be regression."
        )
    return outputs == 1
