"""Arguments and options that several commands have, and the options of decoding."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from typer import Argument, Option

from regard.cli.console import json_alone
from regard.errors import ConfigError
from regard.executors import ExecutorOptions


def existing(model: Path) -> Path:
    """The folder of a model; that it is missing is reported before torch is imported."""
    from regard.checkpoints.hub import NAME, resolve

    if model.parent.is_dir() or not NAME.fullmatch(str(model)):
        resolve(model)
    return model


ModelFolder = Annotated[
    Path,
    Argument(
        metavar="MODEL",
        help="The folder of a run or of a model, or a name on the hub.",
        callback=existing,
    ),
]
Quantize = Annotated[
    Literal["int8", "bfloat16"] | None,
    Option(help="Quantize the weights of the model when it is loaded."),
]
Device = Annotated[
    str | None,
    Option(
        metavar="DEVICE",
        help="Compute on this device: cpu, cuda or cuda:1; without it on a GPU, if there is one.",
    ),
]
TooLong = Annotated[
    Literal["error", "truncate"],
    Option(help="What happens to texts that are longer than the model reads."),
]
Delimiter = Annotated[
    str | None, Option(metavar="SIGN", help="The sign between the fields of a CSV table.")
]
AsJson = Annotated[
    bool,
    Option(
        "--json", help="Print the result as JSON, and nothing else on stdout.", callback=json_alone
    ),
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Show warnings alone and no progress.")]
Texts = Annotated[
    list[str] | None,
    Argument(metavar="TEXT", help="Texts; without one, or with -, the lines of standard input."),
]


def _decoding(
    beams: Annotated[
        int | None, Option(help="Decode with beam search and this many beams.")
    ] = None,
    n_best: Annotated[
        int | None, Option(help="Return this many hypotheses of each text, the best first.")
    ] = None,
    length_penalty: Annotated[
        str | None,
        Option(metavar="A", help="Rank hypotheses by score / length^A; gnmt:A is Wu et al.'s."),
    ] = None,
    temperature: Annotated[
        float | None, Option(help="Sample the tokens of an output at this temperature.")
    ] = None,
    top_k: Annotated[
        int | None, Option(help="Sample among the N tokens that are most probable.")
    ] = None,
    top_p: Annotated[
        float | None,
        Option(help="Sample among the most probable tokens that together have this probability."),
    ] = None,
    samples: Annotated[int | None, Option(help="Sample this many outputs for each text.")] = None,
    seed: Annotated[int | None, Option(help="Draw the samples with this seed.")] = None,
    no_repeat_ngram: Annotated[
        int | None, Option(help="Write no sequence of N tokens twice in an output.")
    ] = None,
    min_tokens: Annotated[
        int | None, Option(help="Write at least N tokens of an output before it may end.")
    ] = None,
    prompt_lookup_num_tokens: Annotated[
        int | None, Option(help="Decode speculatively: propose N tokens that followed before.")
    ] = None,
    max_tokens: Annotated[int | None, Option(help="End an output after N tokens.")] = None,
    max_length_a: Annotated[
        float | None,
        Option(metavar="A", help="End an output after A times the tokens of its source, plus B."),
    ] = None,
    max_length_b: Annotated[
        int | None, Option(metavar="B", help="Add B tokens to the limit of --max-length-a.")
    ] = None,
    stop: Annotated[
        list[str] | None,
        Option(help="End an output before this text, such as $'\\n'; may be repeated."),
    ] = None,
    source_language: Annotated[
        str | None,
        Option(metavar="CODE", help="Language of the source text (multilingual models)."),
    ] = None,
    target_language: Annotated[
        str | None, Option(metavar="CODE", help="Language of the output (multilingual models).")
    ] = None,
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
        parameters_of_command, added = _parameters(command), _parameters(group)
        del parameters_of_command[parameter]
        for flag in added.values():
            get_args(flag.annotation)[1].rich_help_panel = parameter.replace("_", " ").capitalize()
        for name, text in helps.items():
            value = get_args(added[name].annotation)[0]
            added[name] = added[name].replace(annotation=Annotated[value, Option(help=text)])

        @wraps(command)
        def run(**given: Any) -> Any:
            made = group(**{name: given.pop(name) for name in added})
            return command(**given, **{parameter: made})

        parameters = [*parameters_of_command.values(), *added.values()]
        del run.__wrapped__  # type: ignore[attr-defined]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return add


with_decoding = with_flags("decoding", _decoding)


@dataclass(frozen=True)
class Opening:
    """How a model is opened; see `regard.load`."""

    quantize: Quantize = None
    device: Device = None
    task: Annotated[
        str | None,
        Option(metavar="TASK", help="Use the model for this task, whatever its folder says."),
    ] = None
    model_type: Annotated[
        str | None,
        Option(metavar="TYPE", help="Open the folder as this kind of model, such as bert."),
    ] = None


with_opening = with_flags("opening", Opening)


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
        name: parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
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


def check_none(where: str, options: Mapping[str, Any]) -> None:
    """Check that no option is given that would have no effect.

    where: such as "without --workers N".  options: by name; None, False and [] are not given.

    Raises:
        ConfigError: options were given.
    """
    ignored = [
        name
        for name, value in options.items()
        if not (value is None or value is False or value == [])
    ]
    names = [name if name.isupper() else f"--{name.replace('_', '-')}" for name in ignored]
    if names:
        raise ConfigError(f"{', '.join(names)} has no effect {where}. Leave it out.")
