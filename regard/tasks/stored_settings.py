"""Checks the settings of a task in config.json against the options of the task's class.

A task stores its settings under the names of its constructor's keyword options (`settings`). The
types of these options define which values are valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pydantic import create_model

from regard.errors import CheckpointError
from regard.models.config import Count, Probability, Size
from regard.recipe import Options
from regard.schema import checked
from regard.suggest import nearest

# Options that config.json does not store: they come from other files or from the training data.
NOT_STORED = ("method", "corpora", "texts", "parts")
# Narrower types for options whose declared types allow too much.
RANGES: dict[str, Any] = {
    "format": Literal["lines", "text"] | None,
    "max_length": Size | None,
    "window": Size | None,
    "stride": Size | None,
    "label_smoothing": Probability,
    "overlap": Count,
    "question_tokens": Size,
    "answer_tokens": Size,
}


def checked_settings(task: Any, given: Mapping[str, Any], where: Path) -> dict[str, Any]:
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
    found = checked(dict(given), schema, where, CheckpointError, "regard")
    return {name: getattr(found, name) for name in given}


@lru_cache
def _schema(task: Any) -> type[Options]:
    """The keyword options of a class, and of its base classes as long as it has **options."""
    options: dict[str, Any] = {}
    for kind in task.__mro__:
        if "__init__" not in vars(kind):
            continue
        hints = get_type_hints(kind.__init__, include_extras=True)
        parameters = signature(kind.__init__).parameters.values()
        for one in parameters:
            if one.kind is Parameter.KEYWORD_ONLY and one.name not in NOT_STORED:
                default = ... if one.default is Parameter.empty else one.default
                kept = RANGES.get(one.name, hints[one.name])
                options.setdefault(one.name, (kept, default))
        if not any(one.kind is Parameter.VAR_KEYWORD for one in parameters):
            break
    return create_model(task.__name__, __base__=Options, **options)
