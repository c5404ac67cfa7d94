"""The settings of a task as config.json has them, checked against what the task's class takes.

A task writes its settings by the names of its constructor's options (`settings`), and the types of
these options say which values they may have.
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

# Options that no folder has: the model's other files give them, or the data of a training.
NOT_STORED = ("method", "corpora", "texts", "parts")
# The ranges of options whose types are wider.
RANGES: dict[str, Any] = {
    "format": Literal["lines", "text"] | None,
    "max_tokens": Size | None,
    "window": Size | None,
    "stride": Size | None,
    "smoothing": Probability,
    "overlap": Count,
    "question_tokens": Size,
    "answer_tokens": Size,
}


def checked_settings(task: Any, given: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The same settings, each of which the class of the task takes.

    where: the file that has them as its field `regard`.

    Raises:
        CheckpointError: one is not known, is missing, or has a wrong type or a value out of range.
    """
    schema = _schema(task)
    for name in given:
        if name not in schema.model_fields:
            raise CheckpointError(
                f"{where}: `regard` does not say how the task {task.name} is set up: {name!r} is "
                f"no option of it. {nearest(name, list(schema.model_fields))} Was it written by "
                "another release?"
            )
    found = checked(dict(given), schema, where, CheckpointError, "regard")
    return {name: getattr(found, name) for name in given}


@lru_cache
def _schema(task: Any) -> type[Options]:
    """The options of a class, and of those above it as long as it passes further ones on."""
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
