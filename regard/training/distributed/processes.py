"""The processes of a training: what they send to each other, and the files that they write."""

import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from regard.checkpoints import store
from regard.errors import ConfigError, RegardError
from regard.file_writing import not_written
from regard.training.interrupt import Interrupted

Value = TypeVar("Value")
SEED_STEP = 0x9E3779B97F4A7C15  # between the seeds of two processes, modulo 2^63


class Processes:
    """The processes of a training: here the only one; `SeveralProcesses` are several.

    rank: of this process, from 0.  size: the number of processes.
    """

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this process decides, validates and writes."""
        return self.rank == 0

    def from_first(self, function: Callable[[], Value]) -> Value:
        """Call a function in the first process; its value is returned in all of them.

        An error that it raises in the first process is raised in all of them.
        """
        return function()

    def maximum(self, number: int) -> int:
        """The greatest of the numbers that the processes have."""
        return number

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
        store.write_folder(folder, tensors, facts, same)

    def seed(self, number: int) -> None:
        """Seed torch's generators; each process draws numbers of its own."""
        torch.manual_seed((number + self.rank * SEED_STEP) % 2**63 if self.rank else number)

    def rows(self, count: int) -> range:
        """The rows of a batch of `count` that this process reads."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)


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
        names = {table: store.shard_name(table, self.rank, self.size) for table in tensors}
        files = {names[table]: values for table, values in tensors.items()}
        unchanged = {names[table]: checkpoint for table, checkpoint in same.items()}
        checksums: dict[str, str] = {}
        problem = ""
        try:
            checksums = store.write_files(folder, files, unchanged)
        except OSError as error:
            problem = f"process {self.rank}: {error}"
        reports: list[Any] = [None] * self.size
        distributed.all_gather_object(reports, (problem, checksums, store.rows_of(tensors)))
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
    reports: Sequence[tuple[str, Mapping[str, str], store.Rows]],
) -> None:
    """Complete a folder whose files all processes have written.

    reports: of each process an error message or "", the checksums of its files, and its rows.
    """
    try:
        if problems := [problem for problem, _, _ in reports if problem]:
            raise OSError("; ".join(problems))
        index = store.index_of([rows for _, _, rows in reports])
        checksums = {name: checksum for _, files, _ in reports for name, checksum in files.items()}
        store.complete_folder(folder, {store.FACTS: facts, store.INDEX: index}, checksums)
    except OSError as error:
        store.abandon_folder(folder)
        raise not_written(folder, error) from error


_active = [Processes()]


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


# The timeout of collective operations: the other processes wait in one while process 0 validates.
# That a process has died is what torchrun notices, which ends the others.
WAIT = timedelta(days=7)
_numbers = count()  # of the connections of this process


def started_by_torchrun() -> bool:
    """Whether this is one of several processes."""
    return distributed.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1


def is_first() -> bool:
    """Whether this is the only process, or the first of those that torchrun has started."""
    return not started_by_torchrun() or os.environ["RANK"] == "0"


@contextmanager
def connected(device: str | None = None) -> Iterator[str | None]:
    """Connect this process to the others that torchrun has started; yields its device.

    If there is only one process, nothing is connected, and `device` is yielded as it is. An error
    or an interruption of all is reported by the first process; the others end with its exit code.

    Raises:
        ConfigError: there are more processes than GPUs on this machine, or a device has a number.
    """
    if not started_by_torchrun() or processes().size > 1:
        yield device
        return
    device = _device(device)
    _connect("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", next(_numbers))
    group = SeveralProcesses()
    try:
        with active(group), _warnings_of(group):
            yield device
    except Interrupted as stop:  # in all of them, after they have saved
        if not group.first:
            raise SystemExit(stop.code) from None
        raise
    except Exception as error:
        if error is group.raised:
            raise SystemExit(1) from None
        raise
    finally:
        distributed.destroy_process_group()


def _connect(backend: str, number: int) -> None:
    """Make the group of all processes. Each connection of a program has its own keys in the store
    of torchrun: by those of an earlier one processes would wait for each other at old addresses.
    """
    store, rank, size = next(rendezvous("env://", timeout=WAIT))
    store.set_timeout(WAIT)
    keys = PrefixStore(f"regard/group/{number}", store)
    distributed.init_process_group(backend, store=keys, rank=rank, world_size=size, timeout=WAIT)


@contextmanager
def _warnings_of(here: SeveralProcesses) -> Iterator[None]:
    """Inside, only the first process shows warnings."""
    with warnings.catch_warnings():
        # No model changes the output of a part in place: a test compares all gradients.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        if not here.first:
            warnings.simplefilter("ignore")
        yield


def _device(given: str | None) -> str:
    """The device of this process, "cuda" (a GPU for each process of this machine) or "cpu".

    Raises:
        ConfigError: there are fewer GPUs than processes, or `given` is neither.
    """
    local_rank, count = (int(os.environ[f"LOCAL_{name}"]) for name in ("RANK", "WORLD_SIZE"))
    device = given or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda"):
        raise ConfigError(
            "Each of several processes uses its own GPU: --device must be cpu or cuda, not "
            f"{device}."
        )
    if device == "cuda":
        if count > torch.cuda.device_count():
            raise ConfigError(
                f"{count} processes need {count} GPUs, but this machine has "
                f"{torch.cuda.device_count()}. Set --nproc-per-node to that, or train on the CPU: "
                "--device cpu."
            )
        torch.cuda.set_device(local_rank)
    return device
