"""Templates of recipes: every option of a task with its default and its meaning.

Options without a usable default are set; all others are comments with their defaults.
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
from regard.experiments.recipe_options import schema_of
from regard.models import model_class
from regard.recipe import dumps, names_in, parse, section_class, sections_of
from regard.tasks import TASKS, task_class
from regard.tasks.infer_task import OF_ENCODER_DECODERS

WIDTH = 96  # of a line, in characters
NO_DEFAULT = (PydanticUndefined, dataclasses.MISSING, None)
# task -> the ending of its data files; tsv for all others
FILE_ENDINGS = {
    "language-modeling": "txt",
    "permutation-language-modeling": "txt",
    "bidirectional-language-modeling": "txt",
    "span-corruption": "txt",
    "masked-language-modeling": "txt",
    "replaced-tokens": "txt",
    "embedding": "txt",
    **dict.fromkeys(("tagging", "crf-tagging"), "conll"),
    **dict.fromkeys(("parsing", "sequence-parsing"), "mrg"),
    "question-answering": "json",
    "multiple-choice": "json",
    "dialogue": "json",
}
# tasks beside those of encoder-decoders whose data are lists of files
OF_DOCUMENTS = ("masked-language-modeling", "replaced-tokens")
# task -> the model that is trained from random weights
RANDOM_MODELS = {
    **dict.fromkeys(OF_ENCODER_DECODERS, "transformer-prenorm"),
    "language-modeling": "gpt2",
    "span-corruption": "t5",
    "masked-language-modeling": "bert",
    "replaced-tokens": "electra",
    "permutation-language-modeling": "xlnet",
    "bidirectional-language-modeling": "elmo",
    "captioning": "show-attend-tell",
}
# All other tasks fine-tune the model of a folder, with the usual options.
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
    """A recipe for a task, as TOML; only its paths have to be changed.

    Raises:
        ConfigError: there is no such task, or it cannot be trained.
    """
    if task_class(task).Recipe is None:
        raise ConfigError(
            f"The task {task!r} cannot be trained. These can: {', '.join(trained_tasks())}."
        )
    preset = _preset_options(task)
    schema = schema_of(parse(dumps(preset)))
    head = (
        f"A recipe for {task}: set the paths, then  regard train FILE --dry-run\n"
        "Paths are relative to this file. An option after # is not set; it shows the default."
    )
    lines = [*_comment(head), "", *_section_lines(schema, "", preset)]
    return "\n".join(lines).rstrip() + "\n"


def sections_with(option: str) -> list[str]:
    """The dotted names of an option in the recipes of all tasks, the outermost first."""
    found = dict[str, None]()
    for task in trained_tasks():
        schema = schema_of(parse(dumps(_preset_options(task))))
        for section in sections_of(schema):
            if option in names_in(schema, section):
                found[f"{section}.{option}"] = None
    return sorted(found, key=lambda name: name.count("."))


def _preset_options(task: str) -> dict[str, Any]:
    """The options that the template sets."""
    ending = FILE_ENDINGS.get(task, "tsv")
    file = f"train.{ending}"
    several = [file] if task in (*OF_ENCODER_DECODERS, *OF_DOCUMENTS) else file
    preset = {"task": task, "data": {"train": several, "valid": 0.1}}
    if task in RANDOM_MODELS:
        return {**preset, "model": {"name": RANDOM_MODELS[task]}, "training": {"epochs": 10}}
    teacher = {"teacher": {"path": "path/to/teacher"}} if task == "embedding" else {}
    return {**preset, **teacher, **FINE_TUNING}


def _section_lines(schema: Any, section: str, preset: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a section, and of the sections in it."""
    kind = section_class(schema, section) if section else schema
    docstrings, inner = _docstrings(_documented_class(kind, preset)), list[str]()
    for name in names_in(schema, section):
        key = f"{section}.{name}" if section else name
        if names_in(schema, key):
            inner.append(name)
            continue
        yield from _comment(docstrings.get(name, ""))
        yield from _option_lines(name, kind, preset)
        yield ""
    for name in inner:
        key = f"{section}.{name}" if section else name
        given = preset.get(name, {})
        absent = "# " if _default(kind, name) is None else ""
        yield from _comment(_first_paragraph(section_class(schema, key)).removeprefix(f"[{key}]"))
        yield f"{absent}[{key}]"
        yield from _section_lines(schema, key, given)


def _option_lines(name: str, kind: Any, preset: Mapping[str, Any]) -> Iterator[str]:
    """The line of an option, after a comment with its possible values, if they are few."""
    if choices := _choices(_type(kind, name)):
        yield from _comment("One of " + ", ".join(f'"{one}"' for one in choices) + ".")
    if name in preset:
        yield dumps({name: preset[name]}).rstrip()
        return
    default = _default(kind, name)
    if isinstance(default, Mapping) or any(default is one for one in NO_DEFAULT):
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


def _documented_class(kind: Any, preset: Mapping[str, Any]) -> Any:
    """The class with the docstrings of the options; for random weights the model's `Config`."""
    name: Any = preset.get("name")
    return model_class(name).Config if name in RANDOM_MODELS.values() else kind


def _first_paragraph(kind: Any) -> str:
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


@cache
def _docstrings(kind: type) -> dict[str, str]:
    """The docstring under each field of a class and of its bases, by the name of the field."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # a class made at run time, or in C, has no source
            continue
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, below in zip(body, body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    text = inspect.cleandoc(str(below.value.value))
                    found[field.target.id] = " ".join(text.split())
    return found
