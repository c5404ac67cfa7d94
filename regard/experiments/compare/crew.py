"""Runs in processes of their own, several at once, and how far they are."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.training import Interrupted
from regard.training.progress import Lines

EVERY = {"bar": 0.5, "lines": 30.0, "none": float("inf")}  # seconds between two signs of a run


@dataclass(frozen=True)
class Job:
    """What a child is asked for, and what it is called."""

    name: str
    folder: Path
    words: tuple[str, ...]  # the recipe and its overrides


class Bars:
    """A bar for each run on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = TextColumn("{task.fields[name]}"), BarColumn(12), TextColumn("{task.description}")
        self._bars = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
        self._tasks: dict[str, Any] = {}
        self._bars.start()

    def told(self, name: str, fraction: float, text: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task("", total=1.0, name=name)
        self._bars.update(self._tasks[name], completed=fraction, description=text)
        self._bars.refresh()

    def close(self) -> None:
        self._bars.stop()


class Log:
    """A line for each sign of a run."""

    def __init__(self) -> None:
        self._lines = Lines()

    def told(self, name: str, fraction: float, text: str) -> None:
        self._lines.say(f"{name}: {text}")

    def close(self) -> None:
        pass


class Crew:
    """Children at work. Each saves and stops when its standard input is closed, which happens too
    when this process is killed; Ctrl-C does not reach them in sessions of their own."""

    def __init__(self, show: str):
        if show == "auto":
            show = "bar" if sys.stderr.isatty() else "lines"
        self.every = EVERY[show]
        self.board: Any = Bars() if show == "bar" else Log() if show == "lines" else None
        self._children: list[subprocess.Popen[str]] = []
        self._stopped = threading.Event()

    def work(self, jobs: Sequence[Job], at_once: int) -> None:
        """All of the jobs, `at_once` at a time. Raises RegardError when one has failed, and
        Interrupted after Ctrl-C; what is under way then is saved first."""
        try:
            with ThreadPoolExecutor(at_once) as pool:
                futures = [pool.submit(self._one, job) for job in jobs]
                try:
                    for future in as_completed(futures):
                        future.result()
                except BaseException:
                    self._stop()
                    raise
        except KeyboardInterrupt:
            folders = ", ".join(str(job.folder) for job in jobs if job.folder.exists())
            raise Interrupted(
                f"stopped; what was under way is saved in {folders}. The same command goes on from "
                "there.",
                130,
            ) from None
        finally:
            if self.board:
                self.board.close()

    def _one(self, job: Job) -> None:
        module = "regard.experiments.compare.child"
        words = [sys.executable, "-m", module, str(job.folder), str(self.every)]
        pipe = subprocess.PIPE
        if self._stopped.is_set():
            return
        with subprocess.Popen(
            [*words, *job.words], stdin=pipe, stdout=pipe, text=True, start_new_session=True
        ) as child:
            self._children.append(child)
            if self._stopped.is_set():
                self._stop()
            if self.board:
                self.board.told(job.name, 0.0, "starting")
            assert child.stdout is not None
            for line in child.stdout:
                if self.board and line.startswith("{"):
                    self.board.told(job.name, **json.loads(line))
            code = child.wait()
        if code and not self._stopped.is_set():
            raise RegardError(
                f"the run in {job.folder} has failed (exit code {code}); what it said stands "
                "above. What is finished stays: the same command goes on from there."
            )

    def _stop(self) -> None:
        self._stopped.set()
        for child in self._children:
            assert child.stdin is not None
            child.stdin.close()
