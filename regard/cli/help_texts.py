"""The layout of `--help`: plain text, whole sentences, names of values in upper case."""

import inspect
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo, OptionInfo

VALUES = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}  # what an option takes, by its type


class Command(TyperCommand):
    """A command whose help lists arguments and options by the names of their values."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What follows the command's name in the line of its usage."""
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        return ["[OPTIONS]", *map(_usage, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        groups: dict[str, list[Any]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            panel = getattr(param, "rich_help_panel", None)
            title = f"{panel} options" if panel else f"{param.param_type_name.capitalize()}s"
            groups.setdefault(title, []).append(param)
        for title, params in groups.items():
            if params:
                with formatter.section(title):
                    formatter.write_dl([(_names(param), _text(param)) for param in params])


class Group(TyperGroup):
    """Commands with the first sentence of each one's help, under the titles of their kinds."""

    KINDS: dict[str, tuple[str, ...]] = {}  # title -> names of commands; {}: one title for all

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names of commands, each with a sentence."""
        width = max(map(len, self.list_commands(ctx)))
        for title, names in (self.KINDS or {"Commands": tuple(self.list_commands(ctx))}).items():
            commands: list[tuple[str, Any]] = [
                (name, self.get_command(ctx, name)) for name in names
            ]
            with formatter.section(title):
                rows = [
                    (f"{name:<{width}}", first_sentence(command.help or ""))
                    for name, command in commands
                ]
                formatter.write_dl(rows)


def first_sentence(text: str) -> str:
    """The first sentence of a help."""
    return " ".join(text.split()).split(". ")[0].rstrip(".") + "."


def with_values(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, in whose help every argument and option names the value that it takes."""
    hints = get_type_hints(command, include_extras=True)
    command.__annotations__ = hints  # as objects: from texts, typer would make others
    for name, annotation in hints.items():
        if get_origin(annotation) is not Annotated:
            continue
        kind, info = get_args(annotation)[:2]
        if isinstance(info, ArgumentInfo) and info.metavar is None:
            info.metavar = name.upper()
        elif isinstance(info, OptionInfo) and info.metavar is None:
            kind, choices = _value_of(kind)
            if choices:
                info.metavar = name.upper()
                info.help = f"{info.help} One of: {', '.join(choices)}."
            elif kind is not bool:
                info.metavar = VALUES[kind]
    return command


def _value_of(kind: Any) -> tuple[Any, tuple[str, ...]]:
    """The type of one value of an option, without None and lists; its values, if they are few."""
    if get_origin(kind) is Literal:
        return str, get_args(kind)
    if get_origin(kind) in (Union, UnionType, list):
        return _value_of(get_args(kind)[0])
    return kind, ()


def _usage(argument: Any) -> str:
    name = argument.metavar if argument.required else f"[{argument.metavar}]"
    return f"{name}..." if argument.nargs != 1 else name


def _names(param: Any) -> str:
    """How a parameter is written."""
    if param.param_type_name == "argument":
        return str(param.metavar)
    names = " / ".join(filter(None, (", ".join(param.opts), ", ".join(param.secondary_opts))))
    return names if param.is_flag else f"{names} {param.metavar}"


def _text(param: Any) -> str:
    """The sentences of a parameter; whether it is required; its default."""
    text = inspect.cleandoc(param.help or "")
    if param.required:
        return f"{text} [required]"
    if isinstance(param.default, bool) or param.default in (None, "", (), []):
        return text  # the sentences tell what that means
    return f"{text} [default: {param.default}]"
