"""A recipe to begin with: every option of a task with its default and what it means.

Options that have to be chosen are set; all others are comments, with their defaults.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from regard.errors import ConfigError
from regard.experiments.runs import schema_of
from regard.models import model_class
from regard.recipe import dumps, names_in, parse, section_class, sections_of
from regard.tasks import TASKS, task_class

WIDTH = 96  # characters of a line
NOT_SET = (PydanticUndefined, dataclasses.MISSING, None)
# task -> the ending of its files
FILES = {
    "language-modeling": "txt",
    "tagging": "conll",
    "question-answering": "json",
    "multiple-choice": "json",
}
MODELS = {"translation": "transformer-prenorm", "language-modeling": "gpt2"}  # of random weights
# The others start from the weights of a folder, with the usual options of fine-tuning.
FINE_TUNING = {
    "model": {"path": "path/to/model"},
    "training": {
        "epochs": 3,
        "optimizer": {"name": "adamw", "learning_rate": 5e-5},
        "schedule": {"name": "linear"},
    },
}


def trained_tasks() -> list[str]:
    """The tasks that can be trained."""
    return [name for name in TASKS if task_class(name).Recipe is not None]


def recipe_template(task: str) -> str:
    """A recipe for a task as text: valid TOML, and complete once its paths name files.

    Raises:
        ConfigError: there is no such task, or it is not trained.
    """
    if task_class(task).Recipe is None:
        raise ConfigError(
            f"Nothing trains the task {task!r}. Trained are {', '.join(trained_tasks())}."
        )
    chosen = _chosen(task)
    schema = schema_of(parse(dumps(chosen)))
    head = (
        f"A recipe for {task}: set the paths, then  regard train FILE --dry-run\n"
        "Paths are relative to this file. What stands behind # is the default of an option."
    )
    lines = [*_comment(head), "", *_section(schema, "", chosen)]
    return "\n".join(lines).rstrip() + "\n"


def sections_with(option: str) -> list[str]:
    """The dotted names of an option in the recipes of all tasks, the outermost first."""
    found = dict[str, None]()
    for task in trained_tasks():
        schema = schema_of(parse(dumps(_chosen(task))))
        for section in sections_of(schema):
            if option in names_in(schema, section):
                found[f"{section}.{option}"] = None
    return sorted(found, key=lambda name: name.count("."))


def _chosen(task: str) -> dict[str, Any]:
    """The options that are set."""
    ending = FILES.get(task, "tsv")
    several = ["train.tsv"] if task == "translation" else f"train.{ending}"
    chosen = {"task": task, "data": {"train": several, "valid": 0.1}}
    if task in MODELS:
        return {**chosen, "model": {"name": MODELS[task]}, "training": {"epochs": 10}}
    return {**chosen, **FINE_TUNING}


def _section(schema: Any, section: str, chosen: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a section, and of the sections in it."""
    kind = section_class(schema, section) if section else schema
    about, inner = _docstrings(_documented(kind, chosen)), list[str]()
    for name in names_in(schema, section):
        key = f"{section}.{name}" if section else name
        if names_in(schema, key):
            inner.append(name)
            continue
        yield from _comment(about.get(name, ""))
        yield from _option(name, kind, chosen)
        yield ""
    for name in inner:
        key = f"{section}.{name}" if section else name
        given = chosen.get(name, {})
        absent = "# " if _default(kind, name) is None else ""  # a section that changes the training
        yield from _comment(_first_paragraph(section_class(schema, key)).removeprefix(f"[{key}]"))
        yield f"{absent}[{key}]"
        yield from _section(schema, key, given)


def _option(name: str, kind: Any, chosen: Mapping[str, Any]) -> Iterator[str]:
    """The line of an option, after one with the values that it can have."""
    if choices := _choices(_type(kind, name)):
        yield from _comment("One of " + ", ".join(f'"{one}"' for one in choices) + ".")
    if name in chosen:
        yield dumps({name: chosen[name]}).rstrip()
        return
    default = _default(kind, name)
    if isinstance(default, Mapping) or any(default is one for one in NOT_SET):
        yield f"# {name} =    (not set)"
    else:
        yield "# " + dumps({name: default}).rstrip()


def _comment(text: str) -> list[str]:
    return [f"# {line}" for part in text.splitlines() for line in textwrap.wrap(part, WIDTH)]


def _type(kind: Any, name: str) -> Any:
    if issubclass(kind, BaseModel):
        return kind.model_fields[name].annotation
    return get_type_hints(kind)[name]


def _choices(option: Any) -> list[str]:
    """The values of a `Literal` of texts; [] for other types."""
    values = get_args(option) if get_origin(option) is Literal else ()
    return [one for one in values if isinstance(one, str)]


def _default(kind: Any, name: str) -> Any:
    if issubclass(kind, BaseModel):
        return kind.model_fields[name].get_default(call_default_factory=True)
    field = next(field for field in dataclasses.fields(kind) if field.name == name)
    return field.default


def _documented(kind: Any, chosen: Mapping[str, Any]) -> Any:
    """The class that describes the options: for a model of random weights, its `Config`."""
    name: Any = chosen.get("name")
    return model_class(name).Config if name in MODELS.values() else kind


def _first_paragraph(kind: Any) -> str:
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


@cache
def _docstrings(kind: type) -> dict[str, str]:
    """The text under each field of a class and of its bases, by the field's name."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # made at run time, or in C
            continue
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, below in zip(body, body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    text = inspect.cleandoc(str(below.value.value))
                    found[field.target.id] = " ".join(text.split())
    return found
