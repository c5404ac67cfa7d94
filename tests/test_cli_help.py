"""The help of every command: whole sentences that say what an option applies to."""

from __future__ import annotations

import re

import pytest
import typer
from typer.testing import CliRunner

from regard.cli import COMMANDS, app


def commands(group, name=""):
    """Every command, and every command of a command, by what a user types."""
    for word in group.list_commands(None):
        command = group.get_command(None, word)
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{name}{word} ")
        yield f"{name}{word}", command


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", ALL)
def test_every_argument_and_option_has_a_sentence_and_an_upper_case_value(name):
    for param in ALL[name].params:
        if param.name in ("help", "install_completion", "show_completion"):
            continue
        said = (name, param.name, param.help)
        assert re.fullmatch(r"[A-Z0-9].*\.", param.help, re.S), said
        assert len(param.help.split()) >= 4, said
        if not getattr(param, "is_flag", False):
            assert param.metavar == param.metavar.upper(), said


@pytest.mark.parametrize("name", ALL)
def test_the_help_of_every_command_is_printed_whole(name):
    shown = CliRunner().invoke(app, [*name.split(), "--help"])
    assert shown.exit_code == 0 and "..." not in re.sub(r"\]?\.\.\.\n", "", shown.output)
    text = "".join(shown.output.split())  # lines also end after hyphens
    for param in ALL[name].params:
        assert "".join(param.help.split()) in text
    usage = shown.output.split("\n\n")[0]
    assert not re.search(r"[{}]", usage) and usage == usage.replace("[options]", "[OPTIONS]")


def test_the_overview_has_every_command_under_a_title_with_a_whole_sentence():
    shown = CliRunner().invoke(app, ["--help"]).output
    names = [name for group in COMMANDS.values() for name in group]
    assert sorted(names) == sorted(typer.main.get_command(app).list_commands(None))
    assert "..." not in shown.split("Train:")[1]
    assert max(map(len, shown.splitlines())) <= 80
    for title, group in COMMANDS.items():
        section = shown.split(f"\n{title}:\n")[1].split("\n\n")[0]
        lines = section.splitlines()
        assert [line.split()[0] for line in lines] == list(group)  # each in one line
        assert all(line.endswith(".") for line in lines)
