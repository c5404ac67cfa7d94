"""Which task a folder is for: its heads and its labels say it, and our own section where it fits.

Other libraries carry that section along when they put another head on the model or name its labels
anew. So the head and `id2label` decide, and the section adds what only we know.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.checkpoints.formats.config_table import label_names
from regard.errors import CheckpointError, ConfigError
from regard.models import is_encoder
from regard.models.headed import Headed, outputs_of
from regard.schema import joined_with_or

# kind of head -> task, the first that a model has decides
TASK_OF = {
    "classes": "classification",
    "tags": "tagging",
    "span": "question-answering",
    "multiple_choice": "multiple-choice",
    "masked_lm": "fill-mask",
    "next_sentence": "next-sentence",
}
HEAD_OF = {task: kind for kind, task in TASK_OF.items()} | {"regression": "classes"}


def tasks_for(model: Any) -> tuple[str, ...]:
    """The tasks that a model can be used for."""
    if not isinstance(model, Headed):
        continues = model.continues
        own = ("language-modeling",) if continues else ("translation",)
        if is_encoder(type(model)):
            return (*own, "embedding") if continues else ("embedding",)
        return own
    named = [TASK_OF[kind] for kind in TASK_OF if kind in model.heads]
    if "classes" in model.heads and model.outputs()["classes"] == 1:
        named[named.index("classification")] = "regression"
    return (*named, "embedding")


def check_task(task: str, model: Any, settings: Mapping[str, Any], where: Path) -> None:
    """Compare the task that a folder names, and its labels, with the model in it.

    Raises:
        CheckpointError: the model is of another kind, or its head gives more or fewer answers.
    """
    able = tasks_for(model)
    if task not in able:
        raise CheckpointError(
            f"{where}: `regard.task` is {task}, but the model of this folder, {_described(model)}, "
            f"is for {joined_with_or(able)}. Correct the field, or use another folder."
        )
    labels = settings.get("labels")
    if not isinstance(labels, list | tuple) or task not in HEAD_OF:
        return  # their types are checked with those of the other settings
    outputs = model.outputs()[HEAD_OF[task]]
    if len(labels) != outputs or len(set(map(repr, labels))) != outputs:
        raise CheckpointError(
            f"{where}: `regard.labels` must name each of the {outputs} answers of the head once, "
            f"but is {list(labels)!r:.200}."
        )


def _described(model: Any) -> str:
    heads = list(model.heads) if isinstance(model, Headed) else []
    kind = type(model.encoder if isinstance(model, Headed) else model).__name__
    return f"{kind} with the head{'s' * (len(heads) > 1)} {', '.join(heads)}" if heads else kind


def kept_settings(
    task: str, settings: Mapping[str, Any], model: Any, config: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Settings of a task that a folder was saved with, labels as `id2label` names them now; None
    where its head is of another task.

    Raises:
        ConfigError: its labels are not what its head answers.
    """
    found = task_of(model, config)[0]
    kind = HEAD_OF.get(task, "")
    heads: Any = model.heads if isinstance(model, Headed) else {}
    fits = found == task if kind in ("", "classes") else kind in heads
    if not fits or not kind or "labels" not in settings:
        return dict(settings) if fits else None
    outputs = outputs_of(heads[kind])
    labels = settings["labels"]
    if config.get("id2label") or len(labels) != outputs:
        labels = labels_of(config, outputs)
    return {**settings, "labels": labels}


def task_of(model: Any, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of a task and its settings, for a model and the config.json that it came with.

    Raises:
        ConfigError: its labels are not what its head answers.
    """
    if not isinstance(model, Headed):
        if model.continues:
            return "language-modeling", {}
        return "translation", {}
    kind = next((kind for kind in TASK_OF if kind in model.heads), None)
    if kind is None:
        return "embedding", {}
    outputs = outputs_of(model.heads[kind])
    if kind == "classes" and _is_number(config, outputs):
        return "regression", {}
    labels = {"labels": labels_of(config, outputs)} if kind in ("classes", "tags") else {}
    return TASK_OF[kind], labels


def labels_of(config: Mapping[str, Any], outputs: int) -> list[str]:
    """The labels' names in the order of their numbers; LABEL_0 and so on where none are given.

    Raises:
        ConfigError: a number has no name, or two labels have one name.
    """
    named = label_names(config)
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
    return tuple(label_names(config).values())


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
    return outputs == 1 and problem != "single_label_classification"
