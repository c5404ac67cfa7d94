"""The options of commands that read files and write parts with several workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from regard.cli.console import say, show
from regard.cli.options import Opening, check_none, column_names, with_executor, with_flags
from regard.errors import ConfigError, RegardError
from regard.executors import ExecutorOptions

if TYPE_CHECKING:
    from regard.sharded.driver import ShardedSummary
    from regard.tasks.batching import TooLong

WORKERS = "With --workers: "


@dataclass(frozen=True)
class ShardedWork:
    """What a command computes; see `regard.sharded.manifest.ShardedTask`."""

    model: Path
    verb: str
    too_long: TooLong
    opening: Opening
    options: Mapping[str, Any]
    columns: str | None
    delimiter: str | None = None


@dataclass(frozen=True)
class Sharding:
    """How the work is divided; see `regard.sharded`."""

    workers: int
    executor: ExecutorOptions = ExecutorOptions()
    format: str | None = None
    threads: int = 1
    gpus: int = 0
    rows_per_part: int | None = None
    strict: bool = False
    shard: tuple[int, int] = (1, 1)

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
    ) -> ShardedSummary:
        """Compute the rows of the files into a folder with parts of a format."""
        from regard.sharded.driver import WorkerOptions, compute_files
        from regard.sharded.manifest import ROWS_PER_PART, ShardedTask
        from regard.sharded.parts import format_of

        task = ShardedTask(
            str(work.model.absolute() if work.model.exists() else work.model),
            work.verb,
            format_of(work.verb, format),
            tuple(column_names(work.columns)),
            work.too_long,
            threads=self.threads,
            options=dict(work.options) or None,
            rows_per_part=self.rows_per_part or ROWS_PER_PART,
            delimiter=work.delimiter,
            **asdict(work.opening),
        )
        workers = WorkerOptions(self.workers, self.executor, self.gpus, self.strict, self.shard)
        return compute_files(task, list(inputs), out, workers, progress=progress)


def check_results(summary: ShardedSummary, reasons: Path) -> None:
    """Check that a row has a result, where there are rows.

    reasons: the file with the reason of each row that has none.

    Raises:
        RegardError: none has.
    """
    if summary.rows and summary.failed == summary.rows:
        raise RegardError(f"No row has a result. The reasons are in {reasons}.")


@with_executor
def _sharding(
    workers: Annotated[
        int | None, Option(min=1, help="Read files and write parts with N processes.")
    ] = None,
    format: Annotated[
        str | None,
        Option(metavar="FORMAT", help=f"{WORKERS}the format of parts: jsonl, parquet or txt."),
    ] = None,
    threads: Annotated[
        int | None, Option(min=1, help=f"{WORKERS}the threads of each process; default: 1.")
    ] = None,
    gpus: Annotated[int | None, Option(min=0, help=f"{WORKERS}the GPUs of each process.")] = None,
    rows_per_part: Annotated[
        int | None, Option(min=1, help=f"{WORKERS}the rows of each part; default: 1024.")
    ] = None,
    strict: Annotated[
        bool, Option("--strict", help=f"{WORKERS}stop at the first row that fails.")
    ] = False,
    shard: Annotated[
        str | None,
        Option(
            metavar="I/N",
            help=f"{WORKERS}compute the I-th of N shares of the parts, such as one job of an array "
            "does.",
        ),
    ] = None,
    *,
    executor: ExecutorOptions,
) -> Sharding | None:
    """How the work is divided; None without --workers."""
    options: dict[str, Any] = {
        "executor": None if executor == ExecutorOptions() else executor,
        "format": format,
        "threads": threads,
        "gpus": gpus,
        "rows_per_part": rows_per_part,
        "strict": strict or None,
        "shard": None if shard is None else _share(shard),
    }
    if workers is None:
        check_none("without --workers N", options)
        return None
    return Sharding(
        workers, **{name: value for name, value in options.items() if value is not None}
    )


def _share(text: str) -> tuple[int, int]:
    """The numbers of I/N.

    Raises:
        ConfigError: the text is not of this form.
    """
    index, slash, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal()):
        raise ConfigError(f"--shard must be I/N, such as 1/8, but is {text!r}.")
    return int(index), int(count)


with_sharding = with_flags("sharding", _sharding)
with_vector_sharding = with_flags(
    "sharding", _sharding, format=f"{WORKERS}the format of parts: safetensors or parquet."
)
