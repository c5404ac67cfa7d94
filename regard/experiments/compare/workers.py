"""The runs of a comparison as jobs of an executor, and how their progress is shown."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from regard.executors import Job, Json, results_of
from regard.executors.protocol import Executor
from regard.progress import Lines
from regard.training import Interrupted

INTERVAL = {"bar": 0.5, "lines": 30.0, "none": 1e9}  # seconds between the lines of a run
PROGRESS = "·"  # in the lines that tell how far a run is


class LineDisplay:
    """The lines that runs print.

    every: seconds between two lines of a run.  visible: whether progress is shown, too.
    """

    def __init__(self, visible: bool):
        self.every = INTERVAL["lines" if visible else "none"]
        self._lines, self._visible = Lines(), visible

    def log(self, name: str, line: str) -> None:
        """Show a line that a run has printed."""
        if PROGRESS in line:
            self.say(f"{name}: {line}")
        else:
            print(f"{name}: {line}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Show a line."""
        if self._visible:
            self._lines.say(text)

    def close(self) -> None:
        """End the display."""


class LiveDisplay:
    """On a terminal: for each run a line that tells how far it is."""

    every = INTERVAL["bar"]

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, TextColumn

        columns = TextColumn("{task.fields[run]}"), TextColumn("{task.description}")
        self._live = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
        self._tasks: dict[str, Any] = {}
        self._live.start()

    def log(self, name: str, line: str) -> None:
        """Show a line that a run has printed."""
        if PROGRESS not in line:
            return self.say(f"{name}: {line}")
        if name not in self._tasks:
            self._tasks[name] = self._live.add_task("", run=name)
        self._live.update(self._tasks[name], description=line, refresh=True)

    def say(self, text: str) -> None:
        """Show a line above those of the runs."""
        self._live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """End the display."""
        self._live.stop()


Display = LineDisplay | LiveDisplay


def display(progress: bool) -> Display:
    """What shows the progress of runs."""
    return LiveDisplay() if progress and sys.stderr.isatty() else LineDisplay(progress)


def run_jobs(
    executor: Executor, jobs: Sequence[Job]
) -> Generator[tuple[Job, Future[Json]], None, None]:
    """Each run with its future, as they end. Each job has an argument `folder`, that of its run.

    Raises:
        Interrupted: after Ctrl-C; the runs in progress are saved.
    """
    try:
        yield from results_of(executor, jobs)
    except Interrupted as stopped:
        folders = [str(job.arguments["folder"]) for job in jobs]
        saved = ", ".join(one for one in folders if Path(one).exists())
        state = f"what was in progress is saved in {saved}" if saved else "no run was begun"
        message = f"stopped; {state}. The same command continues from there."
        raise Interrupted(message, stopped.code) from None
