"""The pages of the API reference: every public name, and docstrings as they are meant."""

from __future__ import annotations

import inspect
import io
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
    assert len(described) == len({*described}) > 1


@pytest.mark.parametrize(
    ("module", "table"), [("regard.models", "MODELS"), ("regard.tasks", "TASKS")]
)
def test_a_page_describes_every_class_of_the_table(module, table):
    described = DESCRIBED.findall(reference.page(module))
    addresses = getattr(import_module(module), table).values()
    assert {address.replace(":", ".") for address in addresses} <= {*described}


def test_every_folder_of_the_package_but_the_optional_ones_has_a_page():
    folders = {path.parent.name for path in (ROOT / "regard").glob("*/__init__.py")}
    assert folders - {*reference.STATIONS} <= {"cli", "kernels", "recipes", "serving"}


def restructured(docstring: str) -> str:
    return "\n".join(reference.restructured(docstring.splitlines())).rstrip()


def test_lines_of_names_become_a_list():
    lines = "What it is.\n\nfirst: one thing\nsecond, third: others,\n    which go on here"
    items = "* ``first``: one thing\n* ``second, third``: others,\n  which go on here"
    assert restructured(lines) == f"What it is.\n\n{items}"


def test_prose_and_sections_stay_as_they_are():
    sections = "Args:\n    x: what it is\n        and more\n\nRaises:\n    KeyError: no."
    for text in ("Two lines: with a colon,\nand no more.", f"Do.\n\n{sections}"):
        assert restructured(text) == text


def docstrings(module):
    """Address, kind and docstring of a module's described names and of their members."""
    yield module.__name__, "module", module.__doc__
    for name in reference.public_names(module):
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield (
                f"{module.__name__}.{name}",
                "class" if inspect.isclass(value) else "function",
                value.__doc__,
            )
        for member, function in vars(value).items() if inspect.isclass(value) else ():
            if inspect.isfunction(function) and not member.startswith("_"):
                yield f"{module.__name__}.{name}.{member}", "method", function.__doc__


@pytest.mark.parametrize("station", reference.MODULES)
def test_docstrings_are_well_formed(station):
    docutils = pytest.importorskip("docutils.core", reason="the packages of the group docs")
    napoleon = pytest.importorskip("sphinx.ext.napoleon", reason="the packages of the group docs")
    wrong = []
    for module in reference.modules_of(station):
        for address, kind, text in docstrings(module):
            lines = reference.restructured(inspect.cleandoc(text or "").splitlines())
            text = str(napoleon.GoogleDocstring(lines, napoleon.Config(), what=kind))
            heard = io.StringIO()
            docutils.publish_doctree(
                text, settings_overrides={"warning_stream": heard, "report_level": 2}
            )
            wrong += [
                f"{address}: {line}"
                for line in heard.getvalue().splitlines()
                if re.match(r"<string>:\d+: ", line)
                and not re.search("[Uu]nknown|[Nn]o role", line)
            ]
    assert not wrong
