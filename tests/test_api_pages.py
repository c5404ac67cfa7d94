"""The pages of the API reference: every public name, and docstrings as they are meant."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import reference  # noqa: E402

DESCRIBED = re.compile(r"^\.\. (?:autoclass|autofunction|py:data):: (\S+)$", re.M)


@pytest.mark.parametrize("module", reference.MODULES)
def test_a_page_describes_every_public_name_once(module):
    described = DESCRIBED.findall(reference.page(module))
    names = getattr(import_module(module), "__all__", ())
    assert {f"{module}.{name}" for name in names} <= {*described}
    assert len(described) == len({*described}) > 4


@pytest.mark.parametrize(
    ("module", "table"), [("regard.models", "MODELS"), ("regard.tasks", "TASKS")]
)
def test_a_page_describes_every_class_of_the_table(module, table):
    described = DESCRIBED.findall(reference.page(module))
    addresses = getattr(import_module(module), table).values()
    assert {address.replace(":", ".") for address in addresses} <= {*described}


def test_every_folder_of_the_package_but_the_optional_ones_has_a_page():
    folders = {path.parent.name for path in (ROOT / "regard").glob("*/__init__.py")}
    assert folders - {*reference.STATIONS} <= {"cli", "kernels", "recipes"}


def restructured(docstring: str) -> str:
    return "\n".join(reference.restructured(docstring.splitlines())).rstrip()


def test_lines_of_names_become_a_list():
    lines = "What it is.\n\nfirst: one thing\nsecond, third: others,\n    which go on here"
    items = "* ``first``: one thing\n* ``second, third``: others,\n  which go on here"
    assert restructured(lines) == f"What it is.\n\n{items}"


def test_indented_lines_and_columns_become_literal_blocks():
    assert restructured("Text.\n\n    model(*x)\n    more") == (
        "Text.\n\n::\n\n        model(*x)\n        more"
    )
    columns = "rows(x)    an iterator\nnames(x)   a *list"
    assert restructured(columns) == "::\n\n" + "\n".join(f"    {c}" for c in columns.split("\n"))


def test_prose_and_sections_stay_as_they_are():
    sections = "Args:\n    x: what it is\n        and more\n\nRaises:\n    KeyError: no."
    for text in ("Two lines: with a colon,\nand no more.", f"Do.\n\n{sections}"):
        assert restructured(text) == text
