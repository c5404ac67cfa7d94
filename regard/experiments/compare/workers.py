"""Runs in processes of their own, several at once, and how their progress is shown."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from regard.errors import RegardError
from regard.progress import Lines
from regard.training import Interrupted

INTERVAL = {"bar": 0.5, "lines": 30.0, "none": float("inf")}  # seconds between progress messages


@dataclass(frozen=True)
class RunJob:
    """What a worker does: `arguments` are the recipe and its overrides."""

    name: str
    folder: Path
    arguments: tuple[str, ...]


class Display(Protocol):
    """Shows the progress of runs by their names."""

    def update(self, name: str, fraction: float, text: str) -> None: ...
    def close(self) -> None: ...


class BarDisplay:
    """A bar for each run on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = TextColumn("{task.fields[name]}"), BarColumn(12), TextColumn("{task.description}")
        self._bars = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
        self._tasks: dict[str, Any] = {}
        self._bars.start()

    def update(self, name: str, fraction: float, text: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task("", total=1.0, name=name)
        self._bars.update(self._tasks[name], completed=fraction, description=text)
        self._bars.refresh()

    def close(self) -> None:
        self._bars.stop()


class LineDisplay:
    """A line for each message of a run; nothing where `visible` is false."""

    def __init__(self, visible: bool) -> None:
        self._lines = Lines() if visible else None

    def update(self, name: str, fraction: float, text: str) -> None:
        if self._lines is not None:
            self._lines.say(f"{name}: {text}")

    def close(self) -> None:
        pass


class WorkerPool:
    """Worker processes. Each saves and stops when its standard input is closed, which happens also
    when this process is killed; they are in sessions of their own, which Ctrl-C does not reach."""

    def __init__(self, show: str):
        if show == "auto":
            show = "bar" if sys.stderr.isatty() else "lines"
        self.interval = INTERVAL[show]
        self.display: Display = BarDisplay() if show == "bar" else LineDisplay(show == "lines")
        self._workers: list[subprocess.Popen[str]] = []
        self._stopped = threading.Event()

    def run(self, jobs: Sequence[RunJob], at_once: int) -> None:
        """Do all jobs, `at_once` at a time.

        Raises:
            RegardError: a job has failed; the runs in progress are saved.
            Interrupted: after Ctrl-C; the runs in progress are saved.
        """
        try:
            with ThreadPoolExecutor(at_once) as pool:
                futures = [pool.submit(self._run_one, job) for job in jobs]
                try:
                    for future in as_completed(futures):
                        future.result()
                except BaseException:
                    self._stop()
                    raise
        except KeyboardInterrupt:
            folders = ", ".join(str(job.folder) for job in jobs if job.folder.exists())
            raise Interrupted(
                f"stopped; what was in progress is saved in {folders}. The same command continues "
                "from there.",
                130,
            ) from None
        finally:
            self.display.close()

    def _run_one(self, job: RunJob) -> None:
        if self._stopped.is_set():
            return
        module, pipe = "regard.experiments.compare.worker", subprocess.PIPE
        command = [sys.executable, "-m", module, str(job.folder), str(self.interval)]
        with subprocess.Popen(
            [*command, *job.arguments], stdin=pipe, stdout=pipe, text=True, start_new_session=True
        ) as worker:
            self._workers.append(worker)
            if self._stopped.is_set():
                self._stop()
            self.display.update(job.name, 0.0, "starting")
            assert worker.stdout is not None
            for line in worker.stdout:
                if line.startswith("{"):
                    self.display.update(job.name, **json.loads(line))
            code = worker.wait()
        if code and not self._stopped.is_set():
            raise RegardError(
                f"the run in {job.folder} has failed (exit code {code}); its messages are above. "
                "Finished runs are kept: the same command continues from there."
            )

    def _stop(self) -> None:
        self._stopped.set()
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.close()
