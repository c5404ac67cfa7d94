"""What a training reports: lines of metrics.jsonl, and the progress that is shown."""

import math
import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.training.callbacks import Callback, Progress, Status
from regard.training.counters_and_rng import Counters, Meters
from regard.training.metrics_log import MetricsLog


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
        callback: Callback,
    ):
        self.meters = Meters()
        self.metrics_log, self.progress, self.items = metrics_log, progress, items
        self.callback = callback
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
        message = _shown(scores) or "no scores"
        self.progress.say(f"step {step:,}: validation{kind}: {message}")
        self.callback.on_validation(step, scores)

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
            self.callback.on_log(self.counters.step, event)


def _shown(scores: Mapping[str, float]) -> str:
    return " · ".join(f"{name} {value:.4g}" for name, value in scores.items())
