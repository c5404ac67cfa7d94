"""Whether torchrun has started this process, and its connection to the others."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import torch
from torch import distributed
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from regard.errors import ConfigError, RegardError
from regard.training.distributed.heartbeat import (
    ADVICE,
    Heartbeat,
    store_of_torchrun,
    write_error,
)
from regard.training.distributed.processes import SeveralProcesses, active, processes
from regard.training.interrupt import Interrupted

# The timeout of collective operations: the other processes wait in one while process 0 validates.
# That a process has died is what `Heartbeat` notices.
WAIT = timedelta(days=7)
_numbers = count()  # of the connections of this process


class OtherProcessFailed(RegardError):
    """The first process has failed; its own message says why."""


def started_by_torchrun() -> bool:
    """Whether this is one of several processes."""
    return distributed.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1


def is_first() -> bool:
    """Whether this is the only process, or the first of those that torchrun has started."""
    return not started_by_torchrun() or os.environ["RANK"] == "0"


@contextmanager
def connected(device: str | None = None) -> Iterator[str | None]:
    """Connect this process to the others that torchrun has started; yields its device.

    If there is only one process, nothing is connected, and `device` is yielded as it is.

    Raises:
        ConfigError: there are more processes than GPUs on this machine, or a device has a number.
    """
    if not started_by_torchrun() or processes().size > 1:
        yield device
        return
    device = _device(device)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    number = next(_numbers)
    _connect(backend, number)
    here = SeveralProcesses()
    heartbeat = Heartbeat(store_of_torchrun(number), here.rank, here.size)
    heartbeat.start()
    before = _at_sigterm(partial(_end_by_sigterm, os.getpid()))
    failed = True
    try:
        with active(here), _warnings_of(here):
            yield device
        failed = False
    except Interrupted as stop:  # in all of them, after they have saved; one says so
        failed = False
        if not here.first:
            raise SystemExit(stop.code) from None
        raise
    except Exception as error:
        if error is here.raised:
            raise OtherProcessFailed(
                f"process {here.rank} ends, because process 0 has failed."
            ) from None
        if _is_lost_connection(error):
            raise OtherProcessFailed(
                f"Process {here.rank} of {here.size} has lost the connection to another one, which "
                f"has ended.{ADVICE}"
            ) from error
        raise
    finally:
        heartbeat.leave(failed=failed)
        distributed.destroy_process_group()
        if not failed:  # otherwise torchrun may send SIGTERM before the error is written
            _at_sigterm(before or signal.SIG_DFL)  # None: it was set by a C extension


def _end_by_sigterm(connected_process: int, number: int, frame: FrameType | None) -> None:
    """Write why this process ends, and end as by SIGTERM without a handler; a forked child ends
    without a message. During training `Interruption` replaces this handler. A process that computes
    in C++ at the moment ends when that returns.

    connected_process: the id of the one that is connected to others.
    """
    if os.getpid() == connected_process:
        write_error(
            f"Process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} has received SIGTERM, "
            "which torchrun sends when another process has failed or the job is stopped."
        )
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _at_sigterm(handler: Any) -> Any:
    """Set the handler of SIGTERM; returns the one before. Only the main thread may have one."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, handler)


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


def _is_lost_connection(error: Exception) -> bool:
    """Whether an error of torch means that another process has ended."""
    message = str(error).lower()
    of_backend = isinstance(error, RuntimeError) and ("gloo" in message or "nccl" in message)
    return of_backend or isinstance(error, distributed.DistError)


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
