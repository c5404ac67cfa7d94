"""How commands declare their flags; typer prints them for `--help`."""

import inspect
import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import Field, field
from typing import Annotated, Any, get_args, get_type_hints

from typer import Option


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


def with_flag_types(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, whose parameters are annotated as typer reads them."""
    parameters = parameters_of(command)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    # As objects: from texts, typer would make others.
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    # A paragraph is one line, which is broken where the terminal ends.
    command.__doc__ = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(command) or "")
    return command
