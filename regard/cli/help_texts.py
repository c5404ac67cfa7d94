"""The layout of `--help`: plain text, whole sentences, names of values in upper case."""

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import Field, field
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from typer import Option
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
                    formatter.write_dl([_record(param, ctx) for param in params])


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


def flag(help: str, default: Any = None, **option: Any) -> Any:
    """A flag, as the default of a field or a parameter, whose name and type are the flag's.

    default: of the flag; ...: it is required.  option: further arguments of `typer.Option`.
    """
    return field(default=default, metadata={"help": help, **option})


def parameter_of(
    name: str, hint: Any, declared: Any, changes: Mapping[str, Any] = {}, panel: str | None = None
) -> inspect.Parameter:
    """The parameter of a command that is declared by a `flag`, or has an annotation for typer.

    declared: its default, or the field of a dataclass.  changes: of the flag.  panel: of the help.
    """
    about = changes
    if isinstance(declared, Field):
        about = {**declared.metadata, **changes}
        declared = about.pop("default", declared.default)
    if about:
        names = [f"--{name.replace('_', '-')}"] if hint is bool and not declared else []
        hint = Annotated[hint, Option(*names, **about)]
    if panel is not None:
        kind, option = get_args(hint)
        option = copy(option)
        option.rich_help_panel = panel
        hint = Annotated[kind, option]
    default = inspect.Parameter.empty if declared is ... else declared
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def parameters_of(command: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a command, with annotations that are no strings."""
    hints = get_type_hints(command, include_extras=True)
    return [
        parameter_of(name, hints[name], parameter.default)
        for name, parameter in inspect.signature(command).parameters.items()
    ]


def with_values(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, in whose help every argument and option names the value that it takes."""
    parameters = parameters_of(command)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    # As objects: from texts, typer would make others.
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    for name, annotation in command.__annotations__.items():
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


def _record(param: Any, ctx: Any) -> tuple[str, str]:
    """How a parameter is written, and its sentences."""
    name, text = param.get_help_record(ctx)
    return (param.metavar if param.param_type_name == "argument" else name), text
