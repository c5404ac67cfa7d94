"""Progress of long work: a bar in a terminal, a line now and then elsewhere.

What cannot be printed, on a full disk or a closed terminal, does not end the work.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Protocol, TextIO

_shown: ContextVar[bool] = ContextVar("shown", default=True)


class Stage(Protocol):
    """How far the work is: the fraction that is done, and as `str` what is shown of it."""

    @property
    def fraction(self) -> float: ...
    def __str__(self) -> str: ...


class Bar:
    """A progress bar on a terminal."""

    every = 0.25

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        # Drawn when a status comes, not by a thread that would take turns with the work.
        self._bar = RichProgress(
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            auto_refresh=False,
        )
        self._task = self._bar.add_task("starting", total=1.0)
        self._bar.start()

    def show(self, status: Stage) -> None:
        with suppress(OSError, ValueError):
            self._bar.update(self._task, completed=status.fraction, description=str(status))
            self._bar.refresh()

    def say(self, message: str) -> None:
        with suppress(OSError, ValueError):
            self._bar.console.print(message, markup=False, highlight=False)

    def warn(self, message: str) -> None:
        with suppress(OSError, ValueError):
            self._bar.console.print(f"Warning: {message}", style="yellow", markup=False)

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self._bar.stop()


class Lines:
    """Plain lines, for a log file or a pipe."""

    every = 30.0

    def __init__(self, out: TextIO | None = None):
        self.out = out or sys.stderr

    def show(self, status: Stage) -> None:
        self.say(str(status))

    def say(self, message: str) -> None:
        self._print(f"{time.strftime('%H:%M:%S')} {message}")

    def warn(self, message: str) -> None:
        self.say(f"Warning: {message}")

    def close(self) -> None:
        pass

    def _print(self, line: str) -> None:
        with suppress(OSError, ValueError):
            print(line, file=self.out, flush=True)


class Silent(Lines):
    """Shows warnings alone."""

    every = float("inf")

    def say(self, message: str) -> None:
        pass

    def warn(self, message: str) -> None:
        self._print(f"Warning: {message}")


class Mute(Silent):
    """Shows nothing: of several processes that do the same, one tells of it."""

    def warn(self, message: str) -> None:
        pass


@contextmanager
def showing(progress: object) -> Iterator[None]:
    """Inside, `reporter()` shows progress where this is True, warnings alone where it is not."""
    token = _shown.set(progress is True)
    try:
        yield
    finally:
        _shown.reset(token)


def reporter(progress: bool | None = None) -> Bar | Lines:
    """What shows progress: a bar where standard error is a terminal, lines where it is not.

    progress: False: warnings alone are shown.  None: as `showing` says.
    """
    if not (_shown.get() if progress is None else progress):
        return Silent()
    return Bar() if sys.stderr.isatty() else Lines()


def clock(seconds: float) -> str:
    """1:29, 2:05:00, or ? where it is not known."""
    if not seconds < 1e8:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
