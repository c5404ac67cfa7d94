"""The folder of a run: where its checkpoints lie, which one is sound, which ones may go.

runs/NAME/
  recipe.toml      written by whoever starts the run
  model/           the best or the averaged weights
  checkpoints/     step-000500/ {weights,memory}.safetensors facts.json manifest.json
  metrics.jsonl    one event a line
  result.json      how it ended; there only when the run is finished
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard import old_names
from regard.checkpoints.store import FACTS, read_folder
from regard.errors import CheckpointError, ConfigError
from regard.schema import checked
from regard.training.memory import Counters

RESULT = "result.json"
Tables = dict[str, dict[str, Tensor]]
_STEP = re.compile(r"step-(\d+)(?:\.(\d+))?")
_UNFINISHED = (  # the names under which files are written before they get their own
    "*.unfinished",
    ".*.writing",
    "model/.*.writing",
    "model/*/.*.writing",
    "model/tokenizer*.json.*.tmp",
)


Checkpoint = tuple[Path, Tables, dict[str, Any]]


@dataclass(frozen=True)
class Facts:
    """The fields of a checkpoint's facts.json: all of a training that is not a tensor."""

    identity: dict[str, Any]
    counters: Counters
    position: dict[str, Any]
    precision: str
    scores: dict[str, float]
    learning_rate: float
    norm: float
    counts: dict[str, int]
    metrics_bytes: int
    random: dict[str, Any]
    machine: dict[str, Any]


class RunFolder:
    """Paths of a run, and the order of its checkpoints."""

    def __init__(self, folder: Path):
        self.path = Path(folder)
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model"
        self.result = self.path / RESULT

    @contextmanager
    def held(self) -> Iterator[None]:
        """For one process at a time; however it ends, the folder is free again.

        Raises ConfigError while another process trains here.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            _lock(descriptor, self.path)
            yield
        finally:
            os.close(descriptor)

    def all(self) -> list[Path]:
        """The checkpoints from old to new, by update and then by revision."""
        found = self.checkpoints.iterdir() if self.checkpoints.is_dir() else []
        return sorted((path for path in found if _STEP.fullmatch(path.name)), key=_order)

    def place(self, update: int) -> Path:
        """A name that is free: a checkpoint is never written over another one."""
        taken = {path.name for path in self.all()}
        name = f"step-{update:06d}"
        revisions = (f"{name}.{i}" for i in range(1, len(taken) + 1))
        return self.checkpoints / (name if name not in taken else _first_free(revisions, taken))

    def newest(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest checkpoint whose sums are right, or None when there is none at all.

        Damaged ones are told through `warn` and put aside. Raises CheckpointError when there are
        checkpoints but all are damaged.
        """
        damaged = []
        for path in reversed(self.all()):
            try:
                tensors, facts = read_checkpoint(path)
            except CheckpointError as error:
                damaged.append(path)
                warn(f"{error} This checkpoint is not used; trying the one before it.")
                continue
            for one in damaged:
                _rename(one, f"damaged-{one.name}")
            return path, tensors, facts
        if damaged:
            raise CheckpointError(
                f"all {len(damaged)} checkpoints in {self.checkpoints} are damaged: nothing to "
                "resume. Restore one from a backup, or train again into another folder."
            )
        return None

    def regular(self, every: int) -> list[Path]:
        """The checkpoints at whole multiples of `every` updates, one for each, old to new."""
        latest = {_order(path)[0]: path for path in self.all()}
        return [path for update, path in latest.items() if update and update % every == 0]

    def prune(self, keep: int, also: set[str]) -> None:
        """Delete all checkpoints but the newest `keep` and those named in `also`."""
        latest = {_order(path)[0]: path for path in self.all()}
        kept = {path.name for path in list(latest.values())[-keep:]} | also
        for path in self.all():
            if path.name not in kept:
                shutil.rmtree(_rename(path, f".{path.name}.deleted"), ignore_errors=True)

    def sweep(self) -> None:
        """Remove what a killed process left half written or half deleted."""
        for path in self.checkpoints.glob(".step-*"):
            shutil.rmtree(path, ignore_errors=True)
        for pattern in _UNFINISHED:
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)


def read_checkpoint(path: Path) -> tuple[Tables, dict[str, Any]]:
    """The tensors (by file, by name) and the facts of a checkpoint, with the names of this version.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    tensors, facts = read_folder(path)
    return {file: old_names.parameters(values) for file, values in tensors.items()}, facts


def check_contents(path: Path, tensors: Tables, facts: dict[str, Any]) -> None:
    """Whether all is there that a training goes on from.

    Raises:
        CheckpointError: a file of tensors is missing, or a fact is missing or of a wrong type.
    """
    for name in ("weights", "memory"):
        if name not in tensors:
            raise CheckpointError(f"{path / name}.safetensors is missing.")
    best = checked(facts, Facts, path / FACTS).counters.best_checkpoint
    if best and not _STEP.fullmatch(best):
        raise CheckpointError(f"{path / FACTS}: {best!r} is not the name of a checkpoint.")


def differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every leaf of two nested tables that differs, as "a.b: was 1, is 2"."""
    lines = []
    for key in dict.fromkeys([*before, *now]):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            lines.append(f"{prefix}{key}: was {old!r}, is {new!r}")
    return lines


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"another process is training in {path}. Wait until it has ended, or choose another "
            "folder."
        ) from None
    except OSError:  # some network disks know no locks
        pass


def _order(path: Path) -> tuple[int, int]:
    match = _STEP.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def _first_free(names: Any, taken: set[str]) -> str:
    return next(name for name in names if name not in taken)


def _rename(path: Path, name: str) -> Path:
    target = path.with_name(name)
    shutil.rmtree(target, ignore_errors=True)
    os.rename(path, target)
    return target
