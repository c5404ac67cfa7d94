"""The runs of a study as jobs of an executor, and how their progress is shown."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from pathlib import Path

from regard.executors import Job, Json, results_of
from regard.executors.protocol import Executor
from regard.progress import Bar, reporter
from regard.training import Interrupted

PROGRESS = "·"  # in the lines that tell how far a run is


class RunsDisplay:
    """Shows the lines that runs print: on a terminal the newest of each run beside a bar.

    every: seconds between two lines of a run.
    """

    def __init__(self, progress: bool):
        self._shown, self._newest = reporter(progress), dict[str, str]()
        self.every = min(self._shown.every, 1e9)
        self.say, self.close = self._shown.say, self._shown.close

    @property
    def fraction(self) -> float:
        """The mean of the runs that have begun, see `regard.progress.Stage`."""
        percents = [line.partition("%")[0] for line in self._newest.values()]
        parts = [int(text) / 100 for text in percents if text.isdecimal()]
        return sum(parts) / max(1, len(parts))

    def __str__(self) -> str:
        return "   ".join(f"{name} {line}" for name, line in self._newest.items())

    def log(self, name: str, line: str) -> None:
        """Show a line that a run has printed."""
        if PROGRESS not in line:
            print(f"{name}: {line}", file=sys.stderr, flush=True)
        elif isinstance(self._shown, Bar):
            self._newest[name] = line
            self._shown.show(self)
        else:
            self.say(f"{name}: {line}")


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
