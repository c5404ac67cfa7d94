"""What is told of a training: lines of metrics.jsonl, and the progress that a person sees."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from regard.training.memory import Counters, Meters
from regard.training.progress import Progress, Status
from regard.training.record import Record
from regard.training.utilization import Utilization


class Report:
    """Adds up losses on the device and waits for it only when something is told.

    items: what the task counts, such as "tokens".  work: knows what of the device is used.
    """

    def __init__(
        self, record: Record, progress: Progress, items: str, at: Counters, work: Utilization
    ):
        self.record, self.progress, self.items, self.work = record, progress, items, work
        self.meters = Meters()
        self._seconds, self._tokens, self._places = at.seconds, at.tokens, 0
        self._began = at.seconds  # places are counted since then
        self._shown, self._loss = time.monotonic(), math.nan

    def add(
        self, losses: list[dict[str, Tensor]], totals: Mapping[str, int], batches: Sequence[Any]
    ) -> None:
        """The losses of the batches of one update, and their joint counts."""
        self.meters.add(losses, totals)
        self.work.add(batches)

    def log(self, at: Counters, epochs: float, learning_rate: float, norm: float) -> None:
        """One line with the mean losses since the line before."""
        means = self.meters.means()
        event: dict[str, Any] = {"epoch": epochs, self.items: at.tokens}
        event["train/loss"] = self._loss = sum(means.values())
        if len(means) > 1:
            event |= {f"train/{name}": mean for name, mean in means.items()}
        event |= {"lr": learning_rate, "grad_norm": norm, "seconds": at.seconds}
        seconds = max(1e-9, at.seconds - self._seconds)
        event[f"{self.items}_per_s"] = (at.tokens - self._tokens) / seconds
        share = self.work.share(self.work.places - self._places, seconds)
        if share is not None:
            event["mfu"] = share
        self.record.write(at.update, event)
        self.meters = Meters()
        self._seconds, self._tokens, self._places = at.seconds, at.tokens, self.work.places

    def show_if_due(
        self, at: Counters, epochs: float, fraction: float, learning_rate: float
    ) -> None:
        """The progress, as often as whoever shows it wants."""
        if time.monotonic() - self._shown < self.progress.every:
            return
        self._shown = time.monotonic()
        if self.meters.sums:
            self._loss = sum(self.meters.means().values())
        rate = at.tokens / max(1e-9, at.seconds)
        left = at.seconds * (1 - fraction) / fraction if fraction else math.inf
        share = self.work.share(self.work.places, max(1e-9, at.seconds - self._began))
        so_far = (at.update, epochs, fraction, rate, self._loss, learning_rate, left)
        self.progress.show(Status(*so_far, items=self.items, share=share))

    def validated(self, update: int, scores: Mapping[str, float], extra: Mapping[str, Any]) -> None:
        """The scores of a validation, as a line and for the person."""
        self.record.write(update, {**extra, **{f"valid/{k}": v for k, v in scores.items()}})
        told = " · ".join(f"{name} {value:.4g}" for name, value in scores.items())
        what = " of the averaged weights" if "average" in extra else ""
        self.progress.say(f"update {update:,}: validation{what}: {told or 'no scores'}")
