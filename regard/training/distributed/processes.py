"""The processes of a training: what they send to each other, and the files that they write."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from regard.checkpoints import shards, store
from regard.errors import RegardError
from regard.file_writing import not_written

Value = TypeVar("Value")
SEED_STEP = 0x9E3779B97F4A7C15  # between the seeds of two processes, modulo 2^63


class Processes(ABC):
    """The processes of a training; one of them has this object.

    rank: of this process, from 0.  size: the number of processes.
    """

    rank: int
    size: int

    @property
    def first(self) -> bool:
        """Whether this process decides, validates and writes."""
        return self.rank == 0

    @abstractmethod
    def from_first(self, function: Callable[[], Value]) -> Value:
        """Call a function in the first process; its value is returned in all of them.

        An error that it raises in the first process is raised in all of them.
        """

    @abstractmethod
    def maximum(self, number: int) -> int:
        """The greatest of the numbers that the processes have."""

    @abstractmethod
    def write_folder(
        self,
        folder: Path,
        tensors: Mapping[str, Mapping[str, Tensor]],
        facts: Mapping[str, Any],
        same: Mapping[str, Path],
    ) -> None:
        """As `store.write_folder`: every process writes a file with its tensors; the first one
        writes the facts.

        same: of tables that have not changed, an earlier folder to share the file with.

        Raises:
            CheckpointError: in all of them, where one cannot write.
        """

    def seed(self, number: int) -> None:
        """Seed torch's generators; each process draws numbers of its own."""
        torch.manual_seed((number + self.rank * SEED_STEP) % 2**63 if self.rank else number)

    def rows(self, count: int) -> range:
        """The rows of a batch of `count` that this process reads."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)


class OneProcess(Processes):
    """A training in one process."""

    rank, size = 0, 1

    def from_first(self, function: Callable[[], Value]) -> Value:
        return function()

    def maximum(self, number: int) -> int:
        return number

    def write_folder(
        self,
        folder: Path,
        tensors: Mapping[str, Mapping[str, Tensor]],
        facts: Mapping[str, Any],
        same: Mapping[str, Path],
    ) -> None:
        store.write_folder(folder, tensors, facts, same)


class SeveralProcesses(Processes):
    """The processes that torchrun has started; `connected` connects them."""

    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self._answering = False
        self.raised: BaseException | None = None  # the error of the first process, in the others

    def from_first(self, function: Callable[[], Value]) -> Value:
        if self._answering:  # the others wait for the answer of an outer function
            return function()
        answer: list[Any] = [None, None]  # the value, or the error
        if self.first:
            self._answering = True
            try:
                answer[0] = function()
            except BaseException as error:
                sent = [None, _picklable(error)]
                distributed.broadcast_object_list(sent, src=0)
                raise
            finally:
                self._answering = False
        distributed.broadcast_object_list(answer, src=0)
        value, self.raised = answer
        if self.raised is not None:
            raise self.raised
        return value

    def maximum(self, number: int) -> int:
        greatest = torch.tensor(number)
        distributed.all_reduce(greatest, distributed.ReduceOp.MAX)
        return int(greatest)

    def write_folder(
        self,
        folder: Path,
        tensors: Mapping[str, Mapping[str, Tensor]],
        facts: Mapping[str, Any],
        same: Mapping[str, Path],
    ) -> None:
        self.from_first(lambda: _begin_folder(folder))
        names = {table: shards.shard_name(table, self.rank, self.size) for table in tensors}
        files = {names[table]: values for table, values in tensors.items()}
        unchanged = {names[table]: checkpoint for table, checkpoint in same.items()}
        checksums: dict[str, str] = {}
        problem = ""
        try:
            checksums = store.write_files(folder, files, unchanged)
        except OSError as error:
            problem = f"process {self.rank}: {error}"
        reports: list[Any] = [None] * self.size
        distributed.all_gather_object(reports, (problem, checksums, shards.rows_of(tensors)))
        self.from_first(lambda: _complete_folder(folder, facts, reports))


def _picklable(error: BaseException) -> BaseException:
    """The error, or a `RegardError` with its message where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RegardError(str(error))
    return error


def _begin_folder(folder: Path) -> None:
    try:
        store.begin_folder(folder)
    except OSError as error:
        raise not_written(folder, error) from error


def _complete_folder(
    folder: Path,
    facts: Mapping[str, Any],
    reports: Sequence[tuple[str, Mapping[str, str], shards.Rows]],
) -> None:
    """Complete a folder whose files all processes have written.

    reports: of each process an error message or "", the checksums of its files, and its rows.
    """
    try:
        if problems := [problem for problem, _, _ in reports if problem]:
            raise OSError("; ".join(problems))
        index = shards.index_of([rows for _, _, rows in reports])
        checksums = {name: checksum for _, files, _ in reports for name, checksum in files.items()}
        store.complete_folder(folder, {store.FACTS: facts, shards.INDEX: index}, checksums)
    except OSError as error:
        store.abandon_folder(folder)
        raise not_written(folder, error) from error


_active: list[Processes] = [OneProcess()]


def processes() -> Processes:
    """The processes of the training that this process takes part in."""
    return _active[-1]


@contextmanager
def active(group: Processes) -> Iterator[None]:
    """Inside, `processes` gives these."""
    _active.append(group)
    try:
        yield
    finally:
        _active.pop()
