"""Options that several commands have: arguments, groups of flags, files that are written."""

import inspect
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from functools import wraps
from pathlib import Path
from secrets import token_hex
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pydantic import TypeAdapter, ValidationError
from typer import Argument, Option

from regard.call_options import DecodingFields, LanguageFields
from regard.cli.console import json_alone, say, show
from regard.cli.help_texts import flag as flag
from regard.cli.help_texts import parameter_of, parameters_of
from regard.errors import CheckpointError, ConfigError, RegardError, shown
from regard.executors import ExecutorOptions
from regard.schema import type_error_message

if TYPE_CHECKING:
    from regard.experiments.study import RunOptions
    from regard.sharded.parts import ShardedSummary


def existing(model: Path) -> Path:
    """The folder of a model; that it is missing is reported before torch is imported."""
    from regard.checkpoints.hub import NAME, resolve

    if model.parent.is_dir() or not NAME.fullmatch(str(model)):
        resolve(model)
    return model


ModelFolder = Annotated[
    Path,
    Argument(
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
        help="Compute on this device: cpu, cuda or cuda:1; without it on a GPU, if there is one.",
    ),
]
TooLong = Annotated[
    Literal["error", "truncate"],
    Option(help="What happens to texts that are longer than the model reads."),
]
Delimiter = Annotated[str | None, Option(help="The sign between the fields of a CSV table.")]
AsJson = Annotated[
    bool,
    Option(
        "--json", help="Print the result as JSON, and nothing else on stdout.", callback=json_alone
    ),
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Show warnings alone and no progress.")]
Force = Annotated[bool, Option("--force", help="Replace the file or folder that is there already.")]
Texts = Annotated[
    list[str] | None,
    Argument(metavar="TEXT", help="Texts; without one, or with -, the lines of standard input."),
]


# ---- groups of flags

Command = Callable[..., Any]


def with_flags(
    parameter: str,
    group: type,
    make: Callable[[Any], Any] = lambda flags: flags,
    **changes: Mapping[str, Any],
) -> Callable[[Command], Command]:
    """Add the flags of a group to a command: a dataclass, or options of `regard.call_options`.

    A field of a group that is a dataclass adds its flags, too.

    parameter: of the command; it gets what `make` makes of the group.
    changes: of flags that differ between commands: their `help`, their `default`.
    """

    def add(command: Command) -> Command:
        panel = f"{parameter.replace('_', ' ').capitalize()} options"
        kept_parameters = [p for p in parameters_of(command) if p.name != parameter]
        parameters = [*kept_parameters, *_flags(group, panel, changes)]

        @wraps(command)
        def run(**values: Any) -> Any:
            flags = make(_filled(group, values))
            return command(**values, **{parameter: flags})

        del run.__wrapped__  # type: ignore[attr-defined]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return add


def _flags(
    group: Any, panel: str, changes: Mapping[str, Mapping[str, Any]]
) -> Iterator[inspect.Parameter]:
    """The parameters of a command for the fields of a group.

    panel: of the help.
    """
    plain = get_type_hints(group)
    for name, hint in get_type_hints(group, include_extras=True).items():
        if is_dataclass(hint):
            yield from _flags(hint, panel, changes)
            continue
        if _is_option(hint):
            declared = flag(hint.__metadata__[-1], getattr(group, name, None))
            hint = _flag_type(plain[name])
        else:
            declared = group.__dataclass_fields__[name]
        yield parameter_of(name, hint, declared, changes.get(name, {}), panel)


def _is_option(hint: Any) -> bool:
    """Whether an annotation says what an option does, as in `regard.call_options`."""
    return get_origin(hint) is Annotated and isinstance(hint.__metadata__[-1], str)


def _flag_type(hint: Any) -> Any:
    """The type of a flag of an option: a text where the option has values of several types."""
    if NoneType not in get_args(hint):
        return hint
    kind, *others = (kind for kind in get_args(hint) if kind is not NoneType)
    return (str if others else kind) | None


def _as_list(hint: Any, value: Any) -> Any:
    """The parts of a text between commas, where an option may be a list."""
    is_list = any(get_origin(kind) is list for kind in get_args(hint))
    return value.split(",") if is_list and isinstance(value, str) and "," in value else value


def _value_of(name: str, hint: Any, value: Any) -> Any:
    """The value of an option from that of its flag.

    Raises:
        ConfigError: it has another type, or is out of its bounds.
    """
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        raise ConfigError(type_error_message(name, error.errors(), shown)) from None


def _filled(group: Any, values: dict[str, Any]) -> Any:
    """A group with the values of its flags, which are taken out of `values`; of a TypedDict those
    that are given.
    """
    plain, taken = get_type_hints(group), dict[str, Any]()
    for name, hint in get_type_hints(group, include_extras=True).items():
        if is_dataclass(hint):
            taken[name] = _filled(hint, values)
            continue
        taken[name] = value = values.pop(name)
        if _is_option(hint) and value not in (None, []):
            taken[name] = _value_of(name, hint, _as_list(plain[name], value))
    if is_typeddict(group):
        return {name: value for name, value in taken.items() if value not in (None, [])}
    return group(**taken)


def given(flags: Any) -> dict[str, Any]:
    """The flags of a group that are given, by name."""
    return {name: value for name, value in vars(flags).items() if value not in (None, [])}


class DecodingFlags(DecodingFields, LanguageFields, total=False):
    """How to decode, where it differs from the model's own settings."""

    stop: Annotated[
        list[str] | None, "End an output before this text, such as $'\\n'; may be repeated."
    ]


with_decoding = with_flags("decoding", DecodingFlags)


@dataclass(frozen=True)
class Opening:
    """How a model is opened; see `regard.load`."""

    quantize: Literal["int8", "bfloat16"] | None = flag(
        "Quantize the weights of the model when it is loaded."
    )
    device: Device = None
    task: str | None = flag("Use the model for this task, whatever its folder says.")
    model_type: str | None = flag("Open the folder as this kind of model, such as bert.")


with_opening = with_flags("opening", Opening)


@dataclass(frozen=True)
class StudyFlags:
    """How the runs of compare, cross-validate and sweep are trained."""

    workers: int = flag("Train N runs at the same time.", 1)
    gpus: int = flag("Reserve N GPUs for each run; with 0 runs use those that they find.", 0, min=0)
    quiet: Quiet = False
    executor: ExecutorOptions = ExecutorOptions()

    def options(self, seeds: str = "1", device: str | None = None) -> "RunOptions":
        """The options of the runs, one run for each seed."""
        from regard.experiments.study import RunOptions

        parts_of("--seeds", seeds, r"\d+(, *\d+)*", "1,2,3")
        numbers = seeds.split(",")
        return RunOptions(
            tuple(map(int, numbers)),
            self.executor,
            self.workers,
            self.gpus,
            not self.quiet,
            device,
        )


WORKERS = "With --workers: "


@dataclass(frozen=True)
class ShardedWork:
    """What a command computes; see `regard.sharded.manifest.ShardedTask`."""

    model: Path
    verb: str
    too_long: Literal["error", "truncate"]
    opening: Opening
    options: Mapping[str, Any]
    columns: str | None
    delimiter: str | None = None


@dataclass(frozen=True)
class Sharding:
    """How files are computed into parts; see `regard.sharded`."""

    workers: int | None = flag("Read files and write parts with N processes.", min=1)
    format: str | None = flag(f"{WORKERS}the format of parts: jsonl, parquet or txt.")
    threads: int | None = flag(f"{WORKERS}the threads of each process; default: 1.", min=1)
    gpus: int | None = flag(f"{WORKERS}the GPUs of each process.", min=0)
    rows_per_part: int | None = flag(f"{WORKERS}the rows of each part; default: 1024.", min=1)
    strict: bool = flag(f"{WORKERS}stop at the first row that fails.", False)
    shard: str | None = flag(
        f"{WORKERS}compute the I-th of N shares of the parts, such as one job of an array does.",
        metavar="I/N",
    )
    executor: ExecutorOptions = ExecutorOptions()

    def asked(self) -> bool:
        """Whether parts are asked for.

        Raises:
            ConfigError: other flags than --workers are given without it.
        """
        if self.workers is None:
            executor = None if self.executor == ExecutorOptions() else self.executor
            check_none("without --workers N", {**vars(self), "executor": executor})
        return self.workers is not None

    def run(
        self, work: ShardedWork, inputs: Sequence[str] | None, out: Path | None, as_json: bool
    ) -> None:
        """Compute the rows of the files into a folder, and say what it holds.

        Raises:
            ConfigError: no file or no folder is named.
            RegardError: no row has a result.
        """
        if not inputs or list(inputs) == ["-"] or out is None:
            raise ConfigError(
                "--workers reads files and writes a folder of parts: "
                f"regard {work.verb} MODEL FILE --out FOLDER --workers N."
            )
        summary = self.compute(work, inputs, out, self.format)
        show(asdict(summary), str(summary), True) if as_json else say(str(summary))
        from regard.sharded.manifest import ALL_FAILED

        check_results(summary, summary.out / ALL_FAILED)

    def compute(
        self,
        work: ShardedWork,
        inputs: Sequence[str],
        out: Path,
        format: str | None,
        progress: bool | None = None,
    ) -> "ShardedSummary":
        """Compute the rows of the files into a folder with parts of a format."""
        from regard.sharded.driver import predict_files

        named = given(self) | {"executor": self.executor, "format": format}
        if self.shard is not None:
            index, count = parts_of("--shard", self.shard, r"(\d+)/(\d+)", "1/8")
            named["shard"] = int(index), int(count)
        named |= vars(work.opening)
        results: Any = predict_files(
            work.model,
            list(inputs),
            work.verb,
            out=out,
            columns=column_names(work.columns),
            delimiter=work.delimiter,
            too_long=work.too_long,
            progress=progress,
            **named,
            **work.options,
        )
        summary: ShardedSummary = getattr(results, "summary", results)
        return summary


def check_results(summary: "ShardedSummary", reasons: Path) -> None:
    """Check that a row has a result, where there are rows.

    reasons: the file with the reason of each row that has none.

    Raises:
        RegardError: none has.
    """
    if summary.rows and summary.failed == summary.rows:
        raise RegardError(f"No row has a result. The reasons are in {reasons}.")


with_sharding = with_flags("sharding", Sharding)


# ---- values


def column_names(columns: str | None) -> list[str]:
    """The names or numbers of `--columns`; [] where it is not given."""
    return [] if columns is None else list(map(str.strip, columns.split(",")))


def parts_of(flag: str, text: str, pattern: str, example: str) -> tuple[str, ...]:
    """The groups of a pattern in the text of a flag.

    example: of such a text.

    Raises:
        ConfigError: the text is not of this form.
    """
    match = re.fullmatch(pattern, text)
    if match is None:
        raise ConfigError(f"`{flag}` must be of the form {example}, but is {text!r}.")
    return match.groups()


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


# ---- files that are written

# One of these is in every folder that Regard or a runtime has written for a model, a tokenizer or
# an index.
WRITTEN = ("config.json", "tokenizer.json", "index.json")


def check_out(out: Path | None, force: bool) -> None:
    """Check that a path can be written, before anything is computed.

    Raises:
        CheckpointError: it is there already, without `force`.
        ConfigError: it is a folder with other files than a model, a tokenizer or an index.
    """
    if out is None or not (out.exists() or out.is_symlink()):
        return
    if not force:
        raise CheckpointError(f"{out} is there already. Choose another, or replace it: --force")
    if out.is_dir() and not any((out / name).exists() for name in WRITTEN):
        raise ConfigError(
            f"{out} is a folder with other files, which --force does not remove. Choose another "
            "name."
        )


@contextmanager
def replaced(out: Path, force: bool, source: Path | None = None) -> Iterator[None]:
    """Inside, a path can be written; what was there is removed at the end, or back after an error.

    source: a folder that is read meanwhile.

    Raises:
        ConfigError: the source would be replaced.
        Others as `check_out`.
    """
    check_out(out, force)
    if not out.exists():
        yield
        return
    if source is not None and source.exists() and source.resolve().is_relative_to(out.resolve()):
        raise ConfigError(f"{out} holds {source}, which is read. Choose another name.")
    before = out.with_name(f".{out.name}.{token_hex(4)}.before")
    os.replace(out, before)
    try:
        yield
    except BaseException:
        if not out.exists():
            os.replace(before, out)
        raise
    if before.is_dir() and not before.is_symlink():
        shutil.rmtree(before)
    else:
        before.unlink()
