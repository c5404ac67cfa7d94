"""The options of models, tasks, trainings and requests keep their types, defaults and bounds.

`tests/options.json` lists them: whoever changes one sees it in the change, since recipes of users,
published folders and reports rely on them. `python tests/test_option_values.py` writes the file.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, TypeAdapter

import regard
from regard.models import MODELS, model_class
from regard.training.options import TrainingOptions

FILE = Path(__file__).with_name("options.json")
WORDS = ("title", "description")  # of a JSON schema: names and meanings, no values


def schemas() -> Iterator[tuple[str, Any]]:
    """Each class of options, by its name: pydantic models, configs of models, and [training]."""
    for module in pkgutil.walk_packages(regard.__path__, "regard."):
        if not module.name.endswith("__main__"):
            for value in vars(importlib.import_module(module.name)).values():
                options = isinstance(value, type) and issubclass(value, BaseModel)
                if options and value.__module__ == module.name and value.model_fields:
                    yield f"{value.__module__}.{value.__qualname__}", value
    for name in MODELS:
        if is_dataclass(config := model_class(name).Config):
            yield f"model {name}", config
    for section in (TrainingOptions, *sections_of(TrainingOptions)):
        yield f"training {section.__name__}", section


def sections_of(options: Any) -> list[Any]:
    """The dataclasses that are fields of one."""
    kinds = get_type_hints(options)
    return [kinds[field.name] for field in fields(options) if is_dataclass(kinds[field.name])]


def without_words(schema: Any) -> Any:
    """A JSON schema without titles and descriptions."""
    if isinstance(schema, list):
        return [without_words(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in WORDS or key == value}
    return {key: without_words(value) for key, value in kept.items() if key != "discriminator"}


def option_values() -> dict[str, Any]:
    """Of each class its fields: type, default, bounds."""
    values = {}
    for name, schema in schemas():
        fields = TypeAdapter(schema).json_schema()
        if "properties" not in fields:
            fields = fields["$defs"][fields["$ref"].rpartition("/")[2]]
        values[name] = {key: without_words(value) for key, value in fields["properties"].items()}
    return dict(sorted(values.items()))


def lines() -> str:
    """The file: one line for each option."""
    blocks = (
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in options.items())
        + "}"
        for name, options in option_values().items()
    )
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def test_options_keep_their_types_defaults_and_bounds():
    stored, computed = json.loads(FILE.read_text()), json.loads(lines())
    changed = {name for name in stored | computed if stored.get(name) != computed.get(name)}
    assert not changed, f"{sorted(changed)}: if that is wanted, python tests/test_option_values.py"


if __name__ == "__main__":
    FILE.write_text(lines())
