"""What a user can set: the types, defaults and bounds of all options, by the folder of their code.

`tests/options/FOLDER.json` lists them: whoever changes one sees it in the change, since recipes of
users, published folders and reports rely on them. `python tests/option_values.py` writes all files;
`tests/test_options.py` compares.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

from pydantic import BaseModel, TypeAdapter, create_model

import regard
from regard.decoding import METHODS, option_types
from regard.lazy import imported
from regard.models import MODELS, model_class
from regard.training.options import TrainingOptions

FOLDER = Path(__file__).with_name("options")
WORDS = ("title", "description")  # of a JSON schema: names and meanings, no values
# The folders with a file; "other" has the rest of the package.
PARTS = ("tasks", "models", "training", "decoding", "checkpoints", "text", "other")


def schemas(part: str) -> Iterator[tuple[str, Any]]:
    """Each class of options, by its name: pydantic models, and the dataclasses of some folders."""
    others = [name for _, name, _ in pkgutil.iter_modules(regard.__path__) if name not in PARTS]
    for top in others if part == "other" else [part]:
        for name in modules(f"regard.{top}"):
            for value in vars(importlib.import_module(name)).values():
                options = isinstance(value, type) and issubclass(value, BaseModel)
                if options and value.__module__ == name and value.model_fields:
                    yield f"{name}.{value.__qualname__}", value
    if part == "models":
        configs = {name: model_class(name).Config for name in MODELS}
        yield from ((f"model {n}", config) for n, config in configs.items() if is_dataclass(config))
    elif part == "training":
        kinds = get_type_hints(TrainingOptions)
        sections = [kinds[f.name] for f in fields(TrainingOptions) if is_dataclass(kinds[f.name])]
        for section in (TrainingOptions, *sections):
            yield f"training {section.__name__}", section
    elif part == "decoding":
        types = {n: (t, ...) for n, t in vars(option_types).items() if get_origin(t) is Annotated}
        yield "types of decoding options", create_model("Types", **types)


def modules(name: str) -> list[str]:
    """A module and, of a package, those in it."""
    if name.endswith("__main__"):
        return []
    paths = getattr(importlib.import_module(name), "__path__", ())
    inner = [module.name for module in pkgutil.walk_packages(paths, f"{name}.")]
    return [name, *(module for module in inner if not module.endswith("__main__"))]


def without_words(schema: Any) -> Any:
    """A JSON schema without titles and descriptions."""
    if isinstance(schema, list):
        return [without_words(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in WORDS or key == value}
    return {key: without_words(value) for key, value in kept.items() if key != "discriminator"}


def option_values(part: str) -> dict[str, Any]:
    """Of each class its fields: type, default, bounds; of a decoding method the defaults alone."""
    values: dict[str, Any] = {}
    for name, schema in schemas(part):
        properties = TypeAdapter(schema).json_schema()
        if "properties" not in properties:
            properties = properties["$defs"][properties["$ref"].rpartition("/")[2]]
        values[name] = {k: without_words(v) for k, v in properties["properties"].items()}
    for name, where in METHODS.items() if part == "decoding" else ():
        method = imported(where, "regard.decoding")
        values[f"method {name}"] = {field.name: repr(field.default) for field in fields(method)}
    return dict(sorted(values.items()))


def lines(part: str) -> str:
    """A file: one line for each option."""
    blocks = (
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in options.items())
        + "}"
        for name, options in option_values(part).items()
    )
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def changed(part: str) -> list[str]:
    """The classes whose options are not those of the file; if that is wanted, write it anew."""
    stored = json.loads((FOLDER / f"{part}.json").read_text())
    computed = json.loads(lines(part))
    return sorted(k for k in stored | computed if stored.get(k) != computed.get(k))


if __name__ == "__main__":
    for each in PARTS:
        (FOLDER / f"{each}.json").write_text(lines(each))
