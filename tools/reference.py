"""The API reference: a page for each station, which Sphinx fills from the docstrings.

    python tools/reference.py FOLDER    writes FOLDER/regard.text.rst and so on

A package with `__all__` is described by these names, one with a table (`MODELS`, `TASKS`) by the
classes in it and their protocols, any other by the public names of its modules. `make docs` builds
the pages.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from textwrap import dedent
from types import ModuleType
from typing import get_type_hints

import regard
from regard.registry import Operation

STATIONS = (
    "ops text data layers attention models checkpoints decoding metrics tasks training executors "
    "visual experiments exporting sharded"
).split()
MODULES = [
    *("regard", "regard.recipe", "regard.state"),
    *(f"regard.{station}" for station in STATIONS),
]
PUBLIC = [getattr(regard, name) for name in dir(regard) if inspect.isclass(getattr(regard, name))]
TABLES = {  # packages whose modules are many: the table, and what its classes have in common
    "regard.models": ("MODELS", ("protocols", "encoder_with_heads")),
    "regard.tasks": ("TASKS", ("task", "folders")),
}


# ---------------------------------------------------------------------------------- pages


def public_names(module: ModuleType) -> list[str]:
    """The names in `__all__`, or else the classes and functions that the module itself defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__, key=str.lower)
    own = (name for name, value in vars(module).items() if _defined_in(module, value))
    return [name for name in own if not name.startswith("_")]


def _defined_in(module: ModuleType, value: object) -> bool:
    documented = inspect.isclass(value) or inspect.isfunction(value)
    return documented and getattr(value, "__module__", "") == module.__name__


def modules_of(name: str) -> Iterator[ModuleType]:
    """The module, and those below it where it does not say itself what it exports."""
    module = import_module(name)
    yield module
    if name in TABLES:
        table, common = TABLES[name]
        yield from (import_module(f"{name}.{one}") for one in common)
        places = (place.partition(":")[0] for place in getattr(module, table).values())
        yield from map(import_module, dict.fromkeys(places))
    elif hasattr(module, "__path__") and not hasattr(module, "__all__"):
        for child in sorted(iter_modules(module.__path__), key=lambda one: one.name):
            yield from modules_of(f"{name}.{child.name}")


def directive(module: ModuleType, name: str) -> str:
    """What makes Sphinx describe one name of a module."""
    value, address = getattr(module, name), f"{module.__name__}.{name}"
    if inspect.isclass(value):
        bases = "" if value.__bases__ == (object,) else "   :show-inheritance:\n"
        # A public class is indexed on the page of `regard` alone.
        again = module is not regard and any(value is one for one in PUBLIC)
        return f".. autoclass:: {address}\n   :members:\n{bases}" + again * "   :no-index:\n"
    if inspect.isroutine(value) or isinstance(value, Operation):
        return f".. autofunction:: {address}\n"
    said = ", ".join(f"``{key}``" for key in value) if isinstance(value, Mapping) else repr(value)
    return f".. py:data:: {address}\n\n   {said}\n"


def section(module: ModuleType, underline: str) -> str:
    """A module: its docstring, a table of its names, and each of them."""
    name, names = module.__name__, public_names(module)
    parts = [f"{name}\n{underline * len(name)}", f".. automodule:: {name}\n   :no-members:"]
    described = [one for one in names if callable(getattr(module, one))]
    if described:
        table = "\n".join(f"   {one}" for one in described)
        parts.append(f".. autosummary::\n   :nosignatures:\n\n{table}")
    return "\n\n".join([*parts, *(directive(module, one) for one in names)]) + "\n"


def page(name: str) -> str:
    """The page of a station."""
    first, *others = modules_of(name)
    return "\n".join([section(first, "="), *(section(one, "-") for one in others)])


def write(folder: Path) -> None:
    """One page for each of `MODULES`; a page that has not changed keeps its time."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in MODULES:
        path, text = folder / f"{name}.rst", page(name)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


# ------------------------------------------------------------------ types and docstrings


def simplify_types(kind: type) -> None:
    """Take the ranges out of the annotations of a class: int, not Annotated[int, ...].

    Annotations with names that only type checkers import stay as they are.
    """
    own = vars(kind).get("__annotations__", {})
    with suppress(NameError, TypeError):
        hints = get_type_hints(kind)
        own.update({name: hints[name] for name in own})


def plain_signature(text: str) -> str:
    """The same for a signature as Sphinx writes it."""
    while found := ANNOTATED.search(text):
        depth, commas, end = 1, [], found.end()
        while depth:
            depth += (text[end] in "[(") - (text[end] in ")]")
            commas += [end] if depth == 1 and text[end] == "," else []
            end += 1
        text = text[: found.start()] + text[found.end() : commas[0]] + text[end:]
    return text


ANNOTATED = re.compile(r"~?(?:typing\.)?Annotated\[")
SECTION = re.compile(r"(Args|Returns|Raises|Yields|Attributes|Example|Note):$")
FIELD = re.compile(r"([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*): (\S.*)$")
COLUMNS = re.compile(r"\S {2,}\S")


def restructured(lines: Iterable[str]) -> list[str]:
    """A docstring of this package as reStructuredText, its sections left for Napoleon.

    Before the sections, indented paragraphs and those in columns are literal blocks, and a
    paragraph of lines `name: what it is` is a list.
    """
    found: list[str] = []
    paragraphs = list(_paragraphs(lines))
    for number, paragraph in enumerate(paragraphs):
        if SECTION.match(paragraph[0]):
            return found + [line for rest in paragraphs[number:] for line in [*rest, ""]]
        found += [*_paragraph(paragraph), ""]
    return found


def _paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    """The lines between blank lines."""
    paragraph: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            paragraph.append(line)
        elif paragraph:
            yield paragraph
            paragraph = []


def _paragraph(lines: list[str]) -> list[str]:
    fields = [number for number, line in enumerate(lines) if FIELD.match(line)]
    others = [line for number, line in enumerate(lines) if number not in fields]
    if lines[0].startswith("    ") or sum(bool(COLUMNS.search(line)) for line in lines) > 1:
        return [f".. code-block:: {_language(lines)}", "", *(f"    {line}" for line in lines)]
    named = fields[:1] == [0] and (len(fields) > 1 or lines[0][0].islower())
    if named and all(line.startswith("    ") for line in others):
        return [_item(line) for line in lines]
    return lines


def _language(lines: list[str]) -> str:
    try:
        ast.parse(dedent("\n".join(lines)))
    except SyntaxError:
        return "text"
    return "python"


def _item(line: str) -> str:
    """A line of a list: its name and text, or how its text goes on."""
    field = FIELD.match(line)
    return f"* ``{field[1]}``: {field[2]}" if field else f"  {line.strip()}"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
