"""What is shown of a training: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TextIO, get_args, runtime_checkable

from regard.errors import ConfigError
from regard.schema import joined_with_or

Show = Literal["auto", "bar", "lines", "none"]


@dataclass(frozen=True)
class Status:
    """How far a training is.

    fraction: of the way to its end.  left: seconds to it, estimated.
    items: what the rate counts: predicted tokens, or what the task says.
    share: of the device's rate of matrix products (MFU); None where it is not known.
    """

    update: int
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
            f"update {self.update:,} · epoch {self.epochs:.2f} · {self.fraction:.1%} · "
            f"loss {self.loss:.4f} · lr {self.learning_rate:.2e} · "
            f"{self.tokens_per_s:,.0f} {self.items}/s{used} · {clock(self.left)} left"
        )


@runtime_checkable
class Progress(Protocol):
    """`every` seconds the loop gives a status; `say` and `warn` show a message at once."""

    every: float

    def show(self, status: Status) -> None: ...
    def say(self, message: str) -> None: ...
    def warn(self, message: str) -> None: ...
    def close(self) -> None: ...


class Bar:
    """A progress bar on a terminal."""

    every = 0.25

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        # Drawn when a status comes, not by a thread that would take turns with the training.
        self._bar = RichProgress(
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            auto_refresh=False,
        )
        self._task = self._bar.add_task("starting", total=1.0)
        self._bar.start()

    def show(self, status: Status) -> None:
        self._bar.update(self._task, completed=status.fraction, description=str(status))
        self._bar.refresh()

    def say(self, message: str) -> None:
        self._bar.console.print(message, markup=False, highlight=False)

    def warn(self, message: str) -> None:
        self._bar.console.print(f"Warning: {message}", style="yellow", markup=False)

    def close(self) -> None:
        self._bar.stop()


class Lines:
    """Plain lines, for a log file or a pipe."""

    def __init__(self, every: float = 30.0, out: TextIO | None = None):
        self.every, self.out = every, out or sys.stderr

    def show(self, status: Status) -> None:
        self.say(str(status))

    def say(self, message: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {message}", file=self.out, flush=True)

    def warn(self, message: str) -> None:
        self.say(f"Warning: {message}")

    def close(self) -> None:
        pass


class Silent(Lines):
    """Shows warnings alone."""

    def __init__(self, every: float = float("inf")):
        super().__init__(every)

    def say(self, message: str) -> None:
        pass

    def warn(self, message: str) -> None:
        print(f"Warning: {message}", file=self.out, flush=True)


def check_show(show: Show | Progress) -> None:
    """Check what `regard.train` is given, before anything is written.

    Raises:
        ConfigError: it is neither the name of a progress nor one.
    """
    if not isinstance(show, Progress) and show not in get_args(Show):
        names = joined_with_or([f'"{name}"' for name in get_args(Show)])
        raise ConfigError(f"`show` must be {names}, or a Progress, but is {show!r:.60}.")


def progress(show: Show | Progress = "auto") -> Progress:
    """A bar when standard error is a terminal, lines when it is not, as "auto" chooses.

    Another `Progress` is returned as it is.
    """
    check_show(show)
    if not isinstance(show, str):
        return show
    if show == "auto":
        show = "bar" if sys.stderr.isatty() else "lines"
    table: dict[str, Any] = {"bar": Bar, "lines": Lines, "none": Silent}
    return table[show]()


def clock(seconds: float) -> str:
    """1:29, 2:05:00, or ? where it is not known."""
    if not seconds < 1e8:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
