"""What a training reports: lines of metrics.jsonl, curves for TensorBoard and other services, and
the progress that is shown. The lines are exact across an interruption."""

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import CheckpointError, MissingExtra
from regard.schema import Fields, checked, parse_json
from regard.training.callbacks import Callback, Progress, Result, Status
from regard.training.checkpointing import Counters

METRICS = "metrics.jsonl"
# The fields that depend on the clock; all others repeat when a run is repeated. A task that counts
# something else than tokens has a rate named after that.
TIMING = ("seconds", "tokens_per_s")


class Event(Fields):
    """A line of metrics.jsonl: beside these two, numbers by name."""

    step: int
    average: list[str] = []
    __pydantic_extra__: dict[str, float | None]


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The events of a run, from old to new; a last line without its end is being written.

    Raises:
        CheckpointError: metrics.jsonl is missing or damaged; the message names the line.
    """
    path = folder / METRICS
    if not path.is_file():
        raise CheckpointError(f"{path}: is missing, or is not a file.")
    with path.open("rb") as file:
        lines = [line for line in file if line.endswith(b"\n")]
    return [_event(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def _event(raw: bytes, where: str) -> dict[str, Any]:
    """The event of a line.

    Raises:
        CheckpointError: the line is damaged.
    """
    event: dict[str, Any] = parse_json(raw.decode(errors="replace").strip(), where)
    checked(event, Event, where)
    return event


class MetricsLog:
    """Appends events to metrics.jsonl, from a known length on.

    When a run resumes, events after its checkpoint are cut off and written again: none is lost or
    there twice. Events that a full disk does not take wait in memory for the next event.
    """

    def __init__(self, folder: Path, length: int = 0, *, tensorboard: bool = False, step: int = 0):
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / METRICS, os.O_RDWR | os.O_CREAT, 0o666)
        self._length = min(length, os.fstat(self._file).st_size)
        os.ftruncate(self._file, self._length)
        self._waiting = b""
        self._board = _board(folder, step) if tensorboard else None

    def write(self, step: int, event: Mapping[str, Any]) -> None:
        """One line; numbers that are not finite become null, which is what JSON has for them."""
        line = {key: _plain(value) for key, value in {"step": step, **event}.items()}
        self._waiting += json.dumps(line, allow_nan=False).encode() + b"\n"
        try:
            self._flush()
        except OSError:
            pass  # a full disk: tried again with the next event, and before each checkpoint
        if self._board is not None:
            for key, value in line.items():
                if isinstance(value, int | float) and key != "step":
                    self._board.add_scalar(key, value, step)

    def length(self) -> int:
        """Write all events to the disk; returns the bytes of metrics.jsonl.

        Raises:
            OSError: they cannot be written.
        """
        self._flush()
        os.fsync(self._file)
        return self._length

    def close(self) -> None:
        """Close the files."""
        if self._board is not None:
            self._board.close()
        os.close(self._file)

    def _flush(self) -> None:
        while self._waiting:
            written = os.pwrite(self._file, self._waiting, self._length)
            self._length += written
            self._waiting = self._waiting[written:]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboard", "track", "Curves for TensorBoard") from None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The values that are numbers, by name."""
    return {name: value for name, value in values.items() if type(value) in (int, float)}


def final_scores(result: Result) -> dict[str, float]:
    """Those on the validation data by their names, and those on the test data as "test/NAME"."""
    tested = {f"test/{name}": value for name, value in result.test_scores.items()}
    return numbers(result.scores | tested)


class WandbLogger(Callback):
    """Sends logged values and the final scores to a run of Weights & Biases.

    Args:
        options: arguments of `wandb.init`: project, name, config, mode ...

    Raises:
        MissingExtra: wandb is not installed.
    """

    def __init__(self, **options: Any):
        try:
            import wandb
        except ImportError as error:
            raise MissingExtra("wandb", "wandb", "Logging to Weights & Biases") from error
        self.run = wandb.init(**options)

    def on_log(self, step: int, values: Mapping[str, Any]) -> None:
        self.run.log(numbers(values), step=step)

    def on_end(self, result: Result) -> None:
        self.run.summary.update(final_scores(result))
        self.run.finish()


class Meters:
    """Sums and counts of each loss since the last log line, added up on the device.

    sums: (), float64, in nats for most tasks.  counts: items of each loss.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def add(self, losses: list[dict[str, Tensor]], counts: Mapping[str, int]) -> None:
        """The losses of the batches of one step, and their joint counts."""
        for of_batch in losses:
            for name, value in of_batch.items():
                before = self.sums.get(name)
                self.sums[name] = value.double() if before is None else before + value
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count

    def means(self) -> dict[str, float]:
        """The mean of each loss over its items; waits for the device."""
        return {name: float(total) / max(1, self.counts[name]) for name, total in self.sums.items()}


class Report:
    """Adds up losses on the device, and waits for it only when something is reported.

    metrics_log: None in the processes that write nothing.  items: what the task counts, such as
    "tokens".
    """

    def __init__(
        self,
        metrics_log: MetricsLog | None,
        progress: Progress,
        items: str,
        counters: Counters,
        callbacks: Sequence[Callback],
    ):
        self.meters = Meters()
        self.metrics_log, self.progress, self.items = metrics_log, progress, items
        self.callbacks = callbacks
        self.counters = counters
        self._seconds, self._items = counters.seconds, counters.tokens
        self._shown, self._loss = time.monotonic(), math.nan

    def add(self, losses: list[dict[str, Tensor]], totals: Mapping[str, int]) -> None:
        """The losses of the batches of one step, and their joint counts."""
        if self.metrics_log is not None:
            self.meters.add(losses, totals)

    def log(self, epochs: float, learning_rate: float, norm: float) -> None:
        """One line with the mean losses since the line before."""
        at, means = self.counters, self.meters.means()
        event: dict[str, Any] = {"epoch": epochs, self.items: at.tokens}
        event["train/loss"] = self._loss = sum(means.values())
        if len(means) > 1:
            event |= {f"train/{name}": mean for name, mean in means.items()}
        event |= {"lr": learning_rate, "grad_norm": norm, "seconds": at.seconds}
        seconds = max(1e-9, at.seconds - self._seconds)
        event[f"{self.items}_per_s"] = (at.tokens - self._items) / seconds
        self._write(event)
        self.meters = Meters()
        self._seconds, self._items = at.seconds, at.tokens

    def show_if_due(self, epochs: float, fraction: float, learning_rate: float) -> None:
        """The progress, every `progress.every` seconds."""
        if time.monotonic() - self._shown < self.progress.every:
            return
        self._shown = time.monotonic()
        if self.meters.sums:
            self._loss = sum(self.meters.means().values())
        counters, seconds = self.counters, self.counters.seconds
        status = Status(
            counters.step,
            epochs,
            fraction,
            counters.tokens / max(1e-9, seconds),
            self._loss,
            learning_rate,
            left=seconds * (1 - fraction) / fraction if fraction else math.inf,
            items=self.items,
        )
        self.progress.show(status)

    def validated(self, scores: Mapping[str, float], extra: Mapping[str, Any]) -> None:
        """The scores of a validation, as a line of metrics.jsonl and as a message."""
        step = self.counters.step
        self._write({**extra, **{f"valid/{k}": v for k, v in scores.items()}})
        kind = " of the averaged weights" if "average" in extra else ""
        if scores:
            self.progress.say(f"step {step:,}: validation{kind}: {_shown(scores)}")
        for callback in self.callbacks:
            callback.on_validation(step, scores)

    def tested(self, scores: Mapping[str, float]) -> None:
        """The scores of the test data, as a line of metrics.jsonl and as a message."""
        self._write({f"test/{name}": score for name, score in scores.items()})
        self.progress.say(f"test data: {_shown(scores)}")

    def length(self) -> int:
        """Write all events to the disk; returns the bytes of metrics.jsonl."""
        return 0 if self.metrics_log is None else self.metrics_log.length()

    def close(self) -> None:
        """Close metrics.jsonl."""
        if self.metrics_log is not None:
            self.metrics_log.close()

    def _write(self, event: Mapping[str, Any]) -> None:
        if self.metrics_log is not None:
            self.metrics_log.write(self.counters.step, event)
            for callback in self.callbacks:
                callback.on_log(self.counters.step, event)


def _shown(scores: Mapping[str, float]) -> str:
    return " · ".join(f"{name} {value:.4g}" for name, value in scores.items())
