"""Arguments and options that several commands have, and the options of decoding."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from typer import Argument, Option

from regard.cli.console import json_alone
from regard.errors import ConfigError
from regard.executors.protocol import ExecutorOptions


def existing(model: Path) -> Path:
    """The folder of a model; that it is missing is reported before torch is imported."""
    from regard.checkpoints.hub import NAME, resolve

    if model.parent.is_dir() or not NAME.fullmatch(str(model)):
        resolve(model)
    return model


ModelFolder = Annotated[
    Path,
    Argument(metavar="MODEL", help="A run or a folder with a model.", callback=existing),
]
Quantize = Annotated[Literal["int8", "bfloat16"] | None, Option(help="Quantize the weights.")]
Device = Annotated[str | None, Option(help="cpu, cuda, cuda:1; default: a GPU, if there is one.")]
TooLong = Annotated[Literal["error", "truncate"], Option(help="Texts beyond the limit.")]
AsJson = Annotated[
    bool,
    Option("--json", help="Print JSON, and nothing else, on stdout.", callback=json_alone),
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Show warnings only, no progress.")]
Texts = Annotated[list[str] | None, Argument(metavar="TEXT", help="- reads standard input.")]


def _decoding(
    beams: Annotated[int | None, Option(help="Beam search with this many beams.")] = None,
    n_best: Annotated[int | None, Option(help="How many hypotheses to return.")] = None,
    length_penalty: Annotated[str | None, Option(help="A: score / length^A; or gnmt:A.")] = None,
    temperature: Annotated[float | None, Option(help="Sample at this temperature.")] = None,
    top_k: Annotated[int | None, Option(help="Sample among the K likeliest tokens.")] = None,
    top_p: Annotated[float | None, Option(help="Sample among tokens of this mass.")] = None,
    samples: Annotated[int | None, Option(help="How many samples.")] = None,
    seed: Annotated[int | None, Option(help="The seed of sampling.")] = None,
    no_repeat_ngram: Annotated[int | None, Option(help="No n-gram of this size twice.")] = None,
    min_tokens: Annotated[int | None, Option(help="The least tokens of an output.")] = None,
    assistant_model: Annotated[
        str | None, Option(help="Speculate: ngram, or a small model.")
    ] = None,
    num_assistant_tokens: Annotated[int | None, Option(help="Tokens of a draft.")] = None,
    max_tokens: Annotated[int | None, Option(help="The most tokens of an output.")] = None,
    max_length_a: Annotated[
        float | None, Option(help="The most tokens of an output for each token of its source.")
    ] = None,
    max_length_b: Annotated[
        int | None, Option(help="Added to the limit of --max-length-a.")
    ] = None,
    stop: Annotated[
        list[str] | None, Option(help="End before this text, such as $'\\n'; may be repeated.")
    ] = None,
    source_language: Annotated[str | None, Option(help="Of a model with several.")] = None,
    target_language: Annotated[str | None, Option(help="Of a model with several.")] = None,
) -> dict[str, Any]:
    """How to decode, where it differs from the model's own settings: the options that are given."""
    return {name: value for name, value in locals().items() if value not in (None, [])}


Command = Callable[..., Any]


def with_flags(
    parameter: str, group: Callable[..., object], **helps: str
) -> Callable[[Command], Command]:
    """Add the flags of a group, a function or a dataclass, to a command.

    parameter: of the command; it gets what the group makes of its flags.
    helps: the help of flags whose values differ between commands.
    """

    def add(command: Command) -> Command:
        own, added = _parameters(command), _parameters(group)
        del own[parameter]
        for name, text in helps.items():
            value = get_args(added[name].annotation)[0]
            added[name] = added[name].replace(annotation=Annotated[value, Option(help=text)])

        @wraps(command)
        def run(**given: Any) -> Any:
            made = group(**{name: given.pop(name) for name in added})
            return command(**given, **{parameter: made})

        parameters = [*own.values(), *added.values()]
        del run.__wrapped__  # type: ignore[attr-defined]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return add


with_decoding = with_flags("decoding", _decoding)


def _executor_options(
    executor: Annotated[
        str, Option(metavar="NAME", help="Where the processes run: local, slurm or ray.")
    ] = "local",
    partition: Annotated[
        str, Option(metavar="NAME", help="Slurm: the partition that jobs are submitted to.")
    ] = "",
    time: Annotated[
        int | None, Option(min=1, help="Slurm: the time limit of a job in minutes; default: a day.")
    ] = None,
    account: Annotated[
        str, Option(metavar="NAME", help="Slurm: the account that jobs are charged to.")
    ] = "",
    sbatch: Annotated[
        list[str] | None,
        Option(metavar="NAME=VALUE", help="Slurm: a further option of sbatch; may be repeated."),
    ] = None,
    ray_address: Annotated[
        str,
        Option(
            metavar="HOST:PORT",
            help="Ray: the Ray Client server of a cluster, or auto; default: RAY_ADDRESS, or a "
            "cluster that is started on this machine.",
        ),
    ] = "",
) -> ExecutorOptions:
    """Where the processes run."""
    return ExecutorOptions(executor, partition, time, account, tuple(sbatch or ()), ray_address)


with_executor = with_flags("executor", _executor_options)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function by name, with annotations that are no strings."""
    hints = get_type_hints(function, include_extras=True)
    return {
        name: one.replace(annotation=hints[name], kind=one.KEYWORD_ONLY)
        for name, one in inspect.signature(function).parameters.items()
    }


def column_names(columns: str | None) -> list[str]:
    """The names or numbers of `--columns`; [] where it is not given.

    Raises:
        ConfigError: there is no name before or after a comma.
    """
    names = [] if columns is None else list(map(str.strip, columns.split(",")))
    if "" in names:
        raise ConfigError(
            f"`--columns` must be names or numbers with commas between them, but is {columns!r}."
        )
    return names


def check_no_decoding(what: str, options: Mapping[str, Any]) -> None:
    """Check that no options of decoding are given for something that does not decode.

    Raises:
        ConfigError: options were given.
    """
    if options:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise ConfigError(
            f"{what} decodes nothing, so {names} would be without effect. Leave it out."
        )
