"""What is shown of a training: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from regard.errors import ConfigError
from regard.progress import clock, reporter


@dataclass(frozen=True)
class Status:
    """How far a training is.

    fraction: how much of the training is done, from 0 to 1.
    tokens_per_s: the rate, in `items` per second.
    left: the estimated seconds to the end.
    items: what the rate counts: predicted tokens, or what the task says.
    share: model FLOPs utilization (MFU), from 0 to 1; None where it is not known.
    """

    step: int
    epochs: float
    fraction: float
    tokens_per_s: float
    loss: float
    learning_rate: float
    left: float
    items: str = "tokens"
    share: float | None = None

    def __str__(self) -> str:
        used = "" if self.share is None else f" · MFU {self.share:.0%}"
        return (
            f"step {self.step:,} · epoch {self.epochs:.2f} · {self.fraction:.1%} · "
            f"loss {self.loss:.4f} · lr {self.learning_rate:.2e} · "
            f"{self.tokens_per_s:,.0f} {self.items}/s{used} · {clock(self.left)} left"
        )


@runtime_checkable
class Progress(Protocol):
    """Shows the status of a training, which the loop gives it every `every` seconds; `say` and
    `warn` show a message at once.
    """

    every: float

    def show(self, status: Status) -> None: ...
    def say(self, message: str) -> None: ...
    def warn(self, message: str) -> None: ...
    def close(self) -> None: ...


def check_progress(progress: object) -> None:
    """Check what `regard.train` is given, before anything is written.

    Raises:
        ConfigError: it is neither True nor False nor a `Progress`.
    """
    if not isinstance(progress, bool | Progress):
        raise ConfigError(f"`progress` must be True, False or a Progress, but is {progress!r:.60}.")


def display_of(progress: bool | Progress = True) -> Progress:
    """A bar when standard error is a terminal, lines when it is not; with False warnings alone.

    Another `Progress` is returned as it is.
    """
    check_progress(progress)
    return reporter(progress) if isinstance(progress, bool) else progress
