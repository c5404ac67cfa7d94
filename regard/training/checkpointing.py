"""Checkpoints: what they hold, when they are written, which are deleted; means of their weights.

runs/NAME/
  recipe.toml      written by the caller before the training starts
  model/           the best or the averaged weights
  checkpoints/     step-000500/ facts.json manifest.json
                  {weights,frozen,averaged,memory}.safetensors
  metrics.jsonl    one event a line
  result.json      how the training ended; only in finished runs
"""

import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.checkpoints.store import FACTS, read_folder, read_table, verify_folder
from regard.errors import CheckpointError
from regard.file_writing import locked
from regard.schema import checked
from regard.training.callbacks import RESULT, Callback
from regard.training.distributed import Processes
from regard.training.options import AveragingOptions, CheckpointOptions


@dataclass
class Counters:
    """How far a training is. Every checkpoint holds them."""

    step: int = 0  # steps made
    epoch_batches: int = 0  # batches taken from the epoch of the last one
    tokens: int = 0  # items seen of the first loss: predicted tokens, or what the task counts
    seconds: float = 0.0  # time spent in steps: without validations and checkpoints
    # the step of the last validation, and how many epochs (or parts, or numbers of steps) it ended
    validated: int = 0
    validated_epochs: int = 0
    best: float | None = None
    best_step: int = 0
    best_checkpoint: str = ""
    stale: int = 0  # validations since the best score was reached first
    averaged: int = 0  # weights in the mean of `WeightAverage`
    history: list[float] = field(default_factory=list)  # the scores that its trigger compares


ONE_PROCESS = Processes()
RETRY = 60.0  # seconds until a checkpoint that could not be written is tried again
Tables = dict[str, dict[str, Tensor]]
AVERAGED = "averaged"  # the file of the mean of the weights; there only where one has begun
FROZEN = "frozen"  # the file of parameters that are not trained; there only if some are not
_STEP = re.compile(r"step-(\d+)(?:\.(\d+))?")
_UNFINISHED = (  # the names of files while they are written
    "*.unfinished",
    ".*.writing",
    "model/.*.writing",
    "model/*/.*.writing",
    "model/tokenizer*.json.*.tmp",
    "adapter/.*.writing",
    "adapter/tokenizer*.json.*.tmp",
)


@dataclass(frozen=True)
class Facts:
    """The fields of a checkpoint's facts.json: all of a training that is not a tensor.

    identity: what must not change between a run and its resumption.
    counters: how far the training is.
    position: that of the training batches.
    precision: that of matrix products, "float32" or "bfloat16".
    scores: those of the last validation.
    norm: that of the last gradient, before clipping.
    counts: items of each loss since the last line of metrics.jsonl.
    metrics_bytes: length of metrics.jsonl.
    random: the states of the generators of Python and numpy.
    machine: versions and the like, on which the last bit of a result depends.
    """

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


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read: its tensors by file and name, and its facts."""

    path: Path
    tensors: Tables
    facts: Facts

    @property
    def weights(self) -> dict[str, Tensor]:
        """Those that are trained and those that are frozen."""
        return self.tensors["weights"] | self.tensors.get(FROZEN, {})


class RunFolder:
    """The paths of a run, and its checkpoints in order."""

    def __init__(self, folder: Path):
        self.path = Path(folder)
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model"
        self.result = self.path / RESULT

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder for this process; the system unlocks it however the process ends.

        Raises:
            ConfigError: another process trains here.
        """
        return locked(self.path, "training in")

    def saved(self) -> list[Path]:
        """The checkpoints from old to new, by step and then by revision."""
        paths = self.checkpoints.iterdir() if self.checkpoints.is_dir() else []
        return sorted((path for path in paths if _STEP.fullmatch(path.name)), key=_order)

    def new_path(self, step: int) -> Path:
        """Where the next checkpoint of a step goes: none is ever written over another one."""
        revisions = [revision for saved, revision in map(_order, self.saved()) if saved == step]
        name = f"step-{step:06d}"
        return self.checkpoints / (f"{name}.{max(revisions) + 1}" if revisions else name)

    def newest(
        self, warn: Callable[[str], None], here: Processes = ONE_PROCESS
    ) -> tuple[Path, Tables, dict[str, Any]] | None:
        """The newest checkpoint whose checksums are right: its path, tensors and facts.

        None where there are none. Damaged ones are renamed to `damaged-*`, with a warning.

        Raises:
            CheckpointError: all checkpoints are damaged.
        """
        damaged: list[Path] = []
        for path in reversed(self.saved()):
            try:
                tensors, facts = read_folder(path, here.rank, here.size)
            except CheckpointError as error:
                damaged.append(path)
                warn(f"{error} This checkpoint is not used; trying the one before it.")
                continue
            for damaged_path in damaged:
                _rename(damaged_path, f"damaged-{damaged_path.name}")
            return path, tensors, facts
        if damaged:
            raise CheckpointError(f"all checkpoints in {self.checkpoints} are damaged.")
        return None

    def at_multiples_of(self, every: int) -> list[Path]:
        """The latest checkpoint at each whole multiple of `every` steps, old to new."""
        latest = {_order(path)[0]: path for path in self.saved()}
        return [path for step, path in latest.items() if step and step % every == 0]

    def prune(self, keep: int, also: set[str]) -> None:
        """Delete all checkpoints but those of the newest `keep` steps and those named `also`."""
        latest = {_order(path)[0]: path for path in self.saved()}
        retained = {path.name for path in list(latest.values())[-keep:]} | also
        for path in self.saved():
            if path.name not in retained:
                shutil.rmtree(_rename(path, f".{path.name}.deleted"), ignore_errors=True)

    def remove_leftovers(self) -> None:
        """Delete what a killed process left half written or half deleted."""
        for path in self.checkpoints.glob(".step-*"):
            shutil.rmtree(path, ignore_errors=True)
        for pattern in _UNFINISHED:
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)


class Checkpointer:
    """Writes checkpoints of what `gather` gives, and then deletes the ones that may go.

    A full disk does not end a training of hours: there is a warning, the earlier checkpoints stay,
    and writing is tried again every minute. Only a checkpoint that must not be missed (the first,
    the last, the one after a signal) raises CheckpointError.

    Frozen parameters are written once: the checkpoints of a run share a file with them.
    """

    def __init__(
        self,
        folder: RunFolder,
        options: CheckpointOptions,
        counters: Counters,
        gather: Callable[[], tuple[Tables, Facts]],
        warn: Callable[[str], None],
        callbacks: Sequence[Callback],
        here: Processes = ONE_PROCESS,
    ):
        self.folder, self.options, self.counters = folder, options, counters
        self.gather, self.warn, self.callbacks, self.here = gather, warn, callbacks, here
        self._saved_step: int | None = None
        self._saved_at = time.monotonic()
        self._failed_at: float | None = None
        self._frozen: tuple[Path, Versions] | None = None  # where they are, and what they were

    def resumed(self, path: Path) -> None:
        """After a resumption: the checkpoint of the present step exists already, at `path`."""
        self._saved_step = self.counters.step
        self._frozen = path, _versions(self.gather()[0].get(FROZEN, {}))

    def save(self) -> Path:
        """Write a checkpoint now, whatever exists; then delete old ones; returns its path."""
        tensors, facts = self.gather()
        path = self.here.from_first(lambda: self.folder.new_path(self.counters.step))
        versions = _versions(tensors.get(FROZEN, {}))
        unchanged = {}  # the last checkpoint has the file of frozen weights, if they are the same
        if versions and self._frozen is not None and self._frozen[1] == versions:
            unchanged = {FROZEN: self._frozen[0]}
        self.here.write_folder(path, tensors, asdict(facts), unchanged)
        self._saved_step, self._saved_at = self.counters.step, time.monotonic()
        self._failed_at = None
        self._frozen = path, versions
        self.prune()
        return path

    def prune(self) -> None:
        """Delete the checkpoints that may go; the best one and those to average stay."""
        named = {self.counters.best_checkpoint, *(path.name for path in self.to_average())}
        limit = self.options.save_total_limit
        self.here.from_first(lambda: self.folder.prune(limit, also=named))

    def save_unless_saved(self) -> None:
        """Write a checkpoint of the present step unless there is one."""
        if self._saved_step != self.counters.step:
            self._tell(self.save())

    def try_to_save(self) -> bool:
        """As `save`, but a failure is a warning; whether it was written."""
        try:
            path = self.save()
        except (OSError, CheckpointError) as error:
            self._failed_at = time.monotonic()
            self.warn(f"{error} The training goes on; it is tried again in {RETRY:.0f} seconds.")
            return False
        self._tell(path)
        return True

    def _tell(self, path: Path) -> None:
        for callback in self.callbacks:
            callback.on_checkpoint(path)

    def save_if_due(self) -> None:
        """Write a checkpoint when the options ask for one after this step, or at this time."""
        if self._saved_step != self.counters.step and self.here.from_first(self._is_due):
            self.try_to_save()

    def to_average(self) -> list[Path]:
        """The checkpoints whose mean is published; none without the option `average`."""
        if not self.options.average:
            return []
        return self.folder.at_multiples_of(self.options.save_steps)[-self.options.average :]

    def _is_due(self) -> bool:
        now, options = time.monotonic(), self.options
        if self._failed_at is not None:
            return now - self._failed_at > RETRY
        by_step = options.save_steps and self.counters.step % options.save_steps == 0
        by_clock = options.save_seconds and now - self._saved_at > options.save_seconds
        return bool(by_step or by_clock)


Versions = dict[str, tuple[int, int]]  # by name: the address and the version of a tensor


def _versions(tensors: dict[str, Tensor]) -> Versions:
    """Where tensors are and how often they were written: equal as long as nothing changes them."""
    return {name: (tensor.data_ptr(), tensor._version) for name, tensor in tensors.items()}


def checked_checkpoint(path: Path, tensors: Tables, facts: dict[str, Any]) -> Checkpoint:
    """A checkpoint with all that a training goes on from.

    Raises:
        CheckpointError: a file of tensors is missing, or a fact is missing or of a wrong type.
    """
    for name in ("weights", "memory"):
        if name not in tensors:
            raise CheckpointError(f"{path / name}.safetensors is missing.")
    typed: Facts = checked(facts, Facts, path / FACTS)
    return Checkpoint(path, tensors, typed)


def _order(path: Path) -> tuple[int, int]:
    """The step and the revision of a checkpoint, by the name of its folder."""
    match = _STEP.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def _rename(path: Path, name: str) -> Path:
    """Rename a folder within its parent, over one that has the name; returns the new path."""
    target = path.with_name(name)
    shutil.rmtree(target, ignore_errors=True)
    os.rename(path, target)
    return target


# ---- the mean of weights


def average(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The uniform mean of the weights in these checkpoint folders, added up in float64.

    Each folder is verified first. Integer buffers are taken from the last one.

    Raises:
        CheckpointError: a folder is damaged, or the folders hold different names or shapes.
    """
    total: dict[str, Tensor] = {}
    for folder in checkpoints:
        verify_folder(folder)
        weights = _weights_in(folder)
        if total and _shapes(weights) != _shapes(total):
            raise CheckpointError(f"{folder} holds other tensors than {checkpoints[0]}.")
        for name, tensor in weights.items():
            if tensor.is_floating_point():
                tensor = total.get(name, 0) + tensor.to(torch.float64)
            total[name] = tensor
    return {
        name: (total[name] / len(checkpoints)).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in weights.items()
    }


def _weights_in(folder: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint, those that are frozen too; where it has a mean, that one."""
    tables = {name: read_table(folder, name) for name in ("weights", FROZEN, AVERAGED)}
    return tables["weights"] | tables[FROZEN] | tables[AVERAGED]


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


class WeightAverage:
    """Averaged SGD: the mean of the weights of a model after each step, from some step on.

        mean = 1 / (K - T + 1) sum_{i = T..K} w_i          (Polyak & Juditsky 1992)

    T is the step at which the mean begins, K the last one. The training goes on with the weights
    themselves; the mean is validated and published. NT-ASGD (Merity et al. 2018, algorithm 1)
    begins it when validations have stopped to improve.

    `counters.averaged` is the number of steps in it, 0 before it begins.

    named: the weights that are trained, by name; a tied one comes once.
    """

    def __init__(self, named: Mapping[str, Tensor], options: AveragingOptions, counters: Counters):
        self.named, self.options, self.counters = named, options, counters
        self.weights: list[Tensor] = [*named.values()]
        self.means: list[Tensor] = []

    @property
    def has_begun(self) -> bool:
        """Whether there is a mean."""
        return self.counters.averaged > 0

    def begin_if_due(self) -> bool:
        """Before a step: begin where the option `start` says so; whether it began."""
        start = self.options.start
        due = start is not None and not self.has_begun and self.counters.step >= start
        if due:
            self._begin()
        return due

    def validated(self, score: float, direction: str) -> bool:
        """Begin where the trigger says so after a validation; whether it began.

        It does if the score is worse than the best of those before the last `nonmono`.
        """
        interval, at = self.options.nonmono, self.counters
        if not interval or self.has_begun or not math.isfinite(score):
            return False
        sign = 1.0 if direction == "min" else -1.0
        before = at.history[:-interval]
        at.history.append(score)
        if not before or sign * score <= min(sign * earlier for earlier in before):
            return False
        self._begin()
        return True

    def add(self) -> None:
        """Add the weights after a step to the mean, where there is one."""
        if self.has_begun:
            self.counters.averaged += 1
            with torch.no_grad():
                torch._foreach_lerp_(self.means, self.weights, 1 / self.counters.averaged)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A block in which the model has the mean, where there is one."""
        if not self.has_begun:
            yield
            return
        weights_before = [weight.detach().clone() for weight in self.weights]
        self.put_into_model()
        try:
            yield
        finally:
            _copy(weights_before, self.weights)

    def put_into_model(self) -> None:
        """Fill the model with the mean, where there is one."""
        if self.has_begun:
            _copy(self.means, self.weights)

    def tensors(self) -> dict[str, Tensor]:
        """The mean by the names of the parameters; {} where there is none."""
        return dict(zip(self.named, self.means, strict=True)) if self.has_begun else {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        self.means = [tensors[name].to(w) for name, w in self.named.items()] if tensors else []

    def _begin(self) -> None:
        self.means = [weight.detach().clone() for weight in self.weights]
        self.counters.averaged = 1


def _copy(values: list[Tensor], weights: list[Tensor]) -> None:
    with torch.no_grad():
        for value, weight in zip(values, weights, strict=True):
            weight.copy_(value)
