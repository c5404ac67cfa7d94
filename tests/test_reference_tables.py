"""The generated reference: every option, method, command and flag, each with its meaning."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.experiments.recipe_options import NO_OPTIONS
from regard.experiments.template import recipe_template, trained_tasks
from regard.models import NAMED, model_class
from regard.serving.routes import ROUTES
from regard.serving.ui.routes import UI_ROUTES
from regard.tasks import TASKS, task_class

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import reference_tables  # noqa: E402

ROW = re.compile(r"^\| `([^`]*)`[^|]* \| (.*?) \| (.*) \|$", re.M)


def part_of(page: str, title: str) -> str:
    """The page from a heading to the next one of its level or above."""
    level = title.index(" ")
    return re.split(rf"^#{{1,{level}}} ", page.partition(f"\n{title}\n")[2], flags=re.M)[0]


@pytest.fixture(scope="module")
def options():
    return reference_tables.options_page()


@pytest.mark.parametrize("task", trained_tasks())
def test_every_option_of_a_recipe_is_in_the_tables(task, options):
    own, shared = part_of(options, f"## Task {task}"), options.partition("\n## Before the")[2]
    section = ""
    for line in recipe_template(task).splitlines():
        if header := re.fullmatch(r"(?:# )?\[([a-z.]+)\]", line):
            section = header[1]
        elif (option := re.fullmatch(r"(?:# )?(\w+) = .*", line)) and section != "model":
            assert f"| `{option[1]}` |" in own + shared, f"[{section}] {option[1]}"


def test_every_option_of_a_model_has_its_default_and_its_meaning():
    page = reference_tables.models_page()
    for name in NAMED:
        rows = {row[0]: row[1:] for row in ROW.findall(part_of(page, f"## {name}"))}
        config = {f.name: f.default for f in fields(model_class(name).Config)}
        assert rows.keys() == config.keys() - {*NO_OPTIONS}
        for option, (default, meaning) in rows.items():
            assert meaning, f"{name}: {option} has no meaning"
            if isinstance(config[option], int | float) and not isinstance(config[option], bool):
                assert float(default.strip("`")) == config[option]


def test_every_task_has_its_methods():
    page = reference_tables.methods_page()
    for name in TASKS:
        (row,) = re.findall(rf"^\| `{name}` \| .* \| .* \| (.*) \|$", page, re.M)
        kind = task_class(name)
        assert all(callable(getattr(kind, method)) for method in re.findall(r"`(\w+)`", row))
        assert "`predict`" in row


def test_every_command_and_flag_of_the_help_is_in_the_tables():
    page = reference_tables.commands_page()
    listed = re.findall(r"^## regard (.*)$", page, re.M)
    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    groups = {group.name for group in app.registered_groups}
    assert {name.split()[0] for name in listed} == {n.replace("_", "-") for n in names} | groups
    for name in listed:
        printed = CliRunner().invoke(app, [*name.split(), "--help"]).stdout
        part = part_of(page, f"## regard {name}")
        for flag in re.findall(r"^│ (?:\* +)?(--[a-z][a-z-]*)", printed, re.M):
            assert flag == "--help" or f"`{flag}`" in part, f"{name} {flag}"
        assert all(meaning for *_, meaning in ROW.findall(part)), part


def test_every_route_and_field_of_the_server_is_in_the_tables():
    page = reference_tables.routes_page()
    for path, route in ROUTES.items():
        rows = {name: meaning for name, _, meaning in ROW.findall(part_of(page, f"## {path}"))}
        assert rows.keys() == route.request.model_fields.keys() and all(rows.values())
    paths = {"/health", "/v1/models", "/ui/lesson", *UI_ROUTES}
    assert all(f"| `{path}` |" in page for path in paths)
