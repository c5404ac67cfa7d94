"""Trainings and comparisons in folders of the command: curves that grow, tables of results."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import CheckpointError, ConfigError
from regard.experiments.results import COMPARISON, Comparison
from regard.serving.problems import Problem
from regard.serving.ui.pictures import plain_picture
from regard.training.callbacks import read_result
from regard.training.metrics_log import METRICS, read_events
from regard.visual.drawing import visible
from regard.visual.report import training_curves

DEPTH = 3  # folders below one of the command in which runs are found
MOST = 1000  # folders of runs that are listed
SKIPPED = ("model", "checkpoints", "tensorboard", "tokenizer")  # folders that hold no runs


@dataclass(frozen=True)
class RunList:
    """The folders of runs and of comparisons, by the names that clients use."""

    runs: Mapping[str, Path]
    comparisons: Mapping[str, Path]


class RunFolders:
    """Folders in which trainings are looked for; clients name what was found, never a path.

    Args:
        folders: runs, or folders that hold some.

    Raises:
        ConfigError: one is no folder, or two have the same name.
    """

    def __init__(self, folders: Sequence[Path] = ()):
        self.folders: dict[str, Path] = {}
        for folder in folders:
            name = visible(folder.resolve().name)
            if not folder.is_dir():
                raise ConfigError(f"`--runs` must name folders, but {folder} is none.")
            if name in self.folders:
                raise ConfigError(
                    f"{self.folders[name]} and {folder} would both be shown as {name!r}. Give the "
                    "folder that holds both."
                )
            self.folders[name] = folder.absolute()  # a path that no other text contains
        self._known: dict[str, Path] = {}  # runs that were found

    def found(self) -> RunList:
        """What the folders hold now."""
        runs, comparisons = dict[str, Path](), dict[str, Path]()
        for name, folder in self.folders.items():
            for inner, path in _below(name, folder, DEPTH):
                if (path / METRICS).is_file():
                    runs[inner] = path
                if (path / COMPARISON).is_file():
                    comparisons[inner] = path
                if len(runs) >= MOST:
                    break
        self._known |= runs
        return RunList(runs, comparisons)

    def listed(self) -> dict[str, Any]:
        """The names of all runs and comparisons, and how far each run is."""
        found = self.found()
        runs = [_summary(name, path) for name, path in found.runs.items()]
        return {"runs": runs, "comparisons": list(found.comparisons)}

    def curves(self, name: str) -> dict[str, Any]:
        """The charts of a run, of what it has written so far, and its last event.

        Raises:
            Problem: 404 for a name that is not listed.
            CheckpointError: metrics.jsonl is damaged.
        """
        folder = self._known.get(name)
        if folder is None or not (folder / METRICS).is_file():
            folder = _named(self.found().runs, name, "run")
        with _by_name(name, folder):
            events = read_events(folder)
        last = events[-1] if events else {}
        picture = plain_picture(training_curves(events))
        return {**_summary(name, folder), "last": last, "picture": picture}

    def comparison(self, name: str) -> dict[str, Any]:
        """The tables and charts of a comparison.

        Raises:
            Problem: 404 for a name that is not listed.
            CheckpointError: comparison.json is damaged.
        """
        folder = _named(self.found().comparisons, name, "comparison")
        with _by_name(name, folder):
            results = Comparison.read(folder)
        pictures = [results.picture(), results.losses()]
        return {
            "name": name,
            "quality": results.quality,
            "best": results.best(),
            "pictures": [plain_picture(one) for one in pictures],
        }


def _below(name: str, folder: Path, depth: int) -> Iterator[tuple[str, Path]]:
    """A folder and those below it, by their names; links are not followed."""
    yield name, folder
    if depth == 0:
        return
    try:
        inner = sorted(os.scandir(folder), key=lambda one: one.name)
    except OSError:  # removed meanwhile, or not readable
        return
    for one in inner:
        if one.is_dir(follow_symlinks=False) and one.name not in SKIPPED:
            yield from _below(f"{name}/{visible(one.name)}", Path(one.path), depth - 1)


def _named(folders: Mapping[str, Path], name: str, what: str) -> Path:
    if name not in folders:
        raise Problem(
            404, f"The folders of --runs hold no {what} {name!r:.80}.", "no_such_run", "name"
        )
    return folders[name]


@contextmanager
def _by_name(name: str, folder: Path) -> Iterator[None]:
    """Errors that name a folder as clients do, not by its path on this machine."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(str(error).replace(str(folder), name)) from error


def _summary(name: str, folder: Path) -> dict[str, Any]:
    """How far a run is: `quiet`, seconds since it last wrote; `ended`, why it did; its scores."""
    try:
        changed = (folder / METRICS).stat().st_mtime
    except OSError:  # removed meanwhile
        changed = time.time()
    found = {"name": name, "quiet": max(0, round(time.time() - changed)), "ended": None}
    try:
        with _by_name(name, folder):
            result = read_result(folder)
    except FileNotFoundError:
        return found
    except CheckpointError as error:
        return found | {"ended": f"damaged: {visible(str(error))}"}
    scores = {name: value for name, value in result.labelled_scores().items() if value is not None}
    return found | {"ended": result.reason, "scores": scores}
