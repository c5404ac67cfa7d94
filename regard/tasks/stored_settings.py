"""Checks the settings of a task in config.json against the options of the task's class.

A task stores its settings under the names of its constructor's keyword options (`settings`). The
types of these options define which values are valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import Field, create_model

from regard.errors import CheckpointError
from regard.models.config import Count, Probability, Size
from regard.recipe import Options
from regard.schema import checked
from regard.suggest import nearest
from regard.tasks.task import Task

NOT_STORED = ("method",)  # an option that comes from generation_config.json
# Narrower types for options whose declared types allow too much.
RANGES: dict[str, Any] = {
    "format": Literal["lines", "text"] | None,
    "max_length": Size | None,
    "threshold": Annotated[float, Field(ge=0, le=1)],
    "window": Size | None,
    "stride": Size | None,
    "target_length": Size | None,
    "memory_length": Count | None,
    "max_distance": Size | None,
    "neural_cache": Size | None,
    "neural_cache_theta": Annotated[float, Field(ge=0, le=1e6)] | None,
    "neural_cache_weight": Probability | None,
    "label_smoothing": Probability,
    "doc_stride": Count,
    "max_question_length": Size,
    "answer_tokens": Size,
}


def checked_settings(task: type[Task], given: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The settings, checked against the options of the task's class.

    where: the file that contains them in its field `regard`.

    Raises:
        CheckpointError: a setting is unknown or missing, has a wrong type, or is out of range.
    """
    schema = _schema(task)
    for name in given:
        if name not in schema.model_fields:
            raise CheckpointError(
                f"{where}: `regard.{name}` is not an option of the task {task.name}. "
                f"{nearest(name, list(schema.model_fields))} Was it written by "
                "another release?"
            )
    settings = checked(dict(given), schema, where, CheckpointError, "regard")
    return {name: getattr(settings, name) for name in given}


def _schema(task: type[Task]) -> type[Options]:
    """The keyword options of the constructor of a task."""
    hints = get_type_hints(task.__init__, include_extras=True)
    options: dict[str, Any] = {}
    for name, parameter in signature(task.__init__).parameters.items():
        if parameter.kind is Parameter.KEYWORD_ONLY and name not in NOT_STORED:
            default = ... if parameter.default is Parameter.empty else parameter.default
            options[name] = (RANGES.get(name, hints[name]), default)
        elif parameter.kind is Parameter.VAR_KEYWORD:  # Unpack[...] of a TypedDict
            for option_types in get_args(hints.get(name)):
                for key, hint in get_type_hints(option_types, include_extras=True).items():
                    options[key] = (RANGES.get(key, hint), None)
    return create_model(task.__name__, __base__=Options, **options)
