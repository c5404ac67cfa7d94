"""The runs of a comparison as jobs of an executor, and how their progress is shown."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from regard.executors import Job, JobResult, Json
from regard.executors.protocol import Executor
from regard.progress import Lines
from regard.training import Interrupted

INTERVAL = {"bar": 0.5, "lines": 30.0, "none": 1e9}  # seconds between progress messages


class LineDisplay:
    """A line for each message of a run: a `JobListener`.

    every: seconds between two messages of a run.  visible: whether more is shown than the lines
    that runs have printed.
    """

    def __init__(self, visible: bool):
        self.every = INTERVAL["lines" if visible else "none"]
        self._lines, self._visible = Lines(), visible

    def message(self, job: Job, message: Json) -> None:
        if isinstance(message, dict):
            self.say(f"{job.name}: {message['text']}")

    def log(self, job: Job, line: str) -> None:
        print(f"{job.name}: {line}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Show a line."""
        if self._visible:
            self._lines.say(text)

    def close(self) -> None:
        """End the display."""


class BarDisplay:
    """A bar for each run on a terminal: a `JobListener`."""

    every = INTERVAL["bar"]

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = TextColumn("{task.fields[name]}"), BarColumn(12), TextColumn("{task.description}")
        self._bars = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
        self._tasks: dict[str, Any] = {}
        self._bars.start()

    def message(self, job: Job, message: Json) -> None:
        if job.name not in self._tasks:
            self._tasks[job.name] = self._bars.add_task("", total=1.0, name=job.name)
        if isinstance(message, dict):
            done: Any = message["fraction"]
            self._bars.update(
                self._tasks[job.name], completed=done, description=str(message["text"])
            )
        self._bars.refresh()

    def log(self, job: Job, line: str) -> None:
        self.say(f"{job.name}: {line}")

    def say(self, text: str) -> None:
        """Show a line above the bars."""
        self._bars.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """End the display."""
        self._bars.stop()


Display = LineDisplay | BarDisplay


def display(progress: bool) -> Display:
    """What shows the progress of runs; bars where standard error is a terminal."""
    return BarDisplay() if progress and sys.stderr.isatty() else LineDisplay(progress)


def run_jobs(
    executor: Executor, jobs: Sequence[Job], shown: Display
) -> Generator[JobResult, None, None]:
    """The results of runs, as they end. Each job has an argument `folder`, that of its run.

    Raises:
        Interrupted: after Ctrl-C; the runs in progress are saved.
    """
    try:
        yield from executor.run(jobs, shown)
    except Interrupted as stopped:
        folders = [str(job.arguments["folder"]) for job in jobs]
        saved = ", ".join(one for one in folders if Path(one).exists())
        state = f"what was in progress is saved in {saved}" if saved else "no run was begun"
        message = f"stopped; {state}. The same command continues from there."
        raise Interrupted(message, stopped.code) from None
