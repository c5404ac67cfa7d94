"""An option is the same wherever it can be given: keyword, recipe, flag, field of a request."""

from __future__ import annotations

from typing import get_type_hints

import pytest
import typer
from pydantic import TypeAdapter, ValidationError

from regard.call_options import (
    DecodingFields,
    DecodingOptions,
    LanguageFields,
    PerplexityFields,
    VectorFields,
)
from regard.cli import app
from regard.serving.requests import Embed, Translate
from regard.tasks.running_text import PerplexitySection
from regard.tasks.sections import DecodingSection
from regard.tasks.task import EmbedOptions

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
# declaration -> the keywords, the models with the fields and the command with the flags
PLACES = {
    DecodingFields: (DecodingOptions, (DecodingSection, Translate), "translate"),
    LanguageFields: (DecodingOptions, (Translate,), "translate"),
    VectorFields: (EmbedOptions, (Embed,), "embed"),
    PerplexityFields: (PerplexityFields, (PerplexitySection,), "evaluate"),
}
OPTIONS = [(kind, name) for kind in PLACES for name in get_type_hints(kind)]
VALUES = (0, -1, 1, 128, 2**31, 0.0, 0.5, 1.5, -31.0, 1e7, True, "never", "word", "x", [1], [0.5])


def takes(annotation: object, value: object) -> bool:
    try:
        TypeAdapter(annotation).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("kind, name", OPTIONS)
def test_an_option_has_one_name_type_default_bounds_and_words(kind, name):
    keywords, models, command = PLACES[kind]
    hint = get_type_hints(kind, include_extras=True)[name]
    assert name in keywords.__annotations__
    for model in models:
        field = model.model_fields[name]
        assert (field.default, field.description) == (None, hint.__metadata__[-1])
        for value in VALUES:
            assert takes(field.rebuild_annotation(), value) == takes(hint, value), (model, value)
    (flag,) = (param for param in COMMANDS[command].params if param.name == name)
    assert (flag.default, flag.help.split(" One of:")[0]) == (None, hint.__metadata__[-1])
    assert f"--{name.replace('_', '-')}" in flag.opts
