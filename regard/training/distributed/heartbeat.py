"""Heartbeats: the processes of a training notice within half a minute that one of them has died.

Otherwise the others would wait in a collective operation for ever. A thread of each process
increases a counter in a store that all processes can reach, and checks the counter of the process
with the next rank. The first process that finds an unchanged counter writes this into the store,
and all end.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import NoReturn

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

INTERVAL = 1.0  # seconds between two increments
TIMEOUT = 15.0  # seconds without a change after which a process counts as dead
GRACE_PERIOD = 5.0  # seconds for the main thread to end by itself, with a message of its own
LEFT, FAILED = b"left", "failed"


def end_process(reason: str) -> NoReturn:
    """End this process at once, even if its main thread waits in a collective operation."""
    write_error(reason)
    os._exit(1)


def write_error(reason: str) -> None:
    """Write why this process ends, and how to continue.

    To the file itself: torch replaces `sys.stderr` while it formats an exception, so what another
    thread or the handler of a signal writes there would be lost.
    """
    with suppress(OSError):  # nobody reads it
        os.write(2, f"error: {reason}{ADVICE}\n".encode())


ADVICE = (
    " This process ends, too. Continue from the last checkpoint with `regard resume`, with any "
    "number of processes."
)


def store_of_torchrun(number: int) -> Store:
    """A new connection to the store of torchrun: only the thread of `Heartbeat` waits on it.

    number: of the connection of the processes, from 0; each has its own keys.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=TIMEOUT))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"regard/heartbeat/{attempt}/{number}", store)


class Heartbeat:
    """The counter of one process, and the check of the next process's counter.

    interval: seconds between two increments.  timeout: seconds without a change after which the
    next process counts as dead.  grace: seconds for the main thread to end by itself.
    on_death: is called with a message when another process has died.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        interval: float = INTERVAL,
        timeout: float = TIMEOUT,
        grace: float = GRACE_PERIOD,
        on_death: Callable[[str], None] = end_process,
    ):
        self.store, self.rank, self.size, self.on_death = store, rank, size, on_death
        self.interval, self.timeout, self.grace = interval, timeout, grace
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.store.set(f"name/{self.rank}", f"pid {os.getpid()} on {platform.node()}")
        self._count(b"0")
        self._thread.start()

    def leave(self, *, failed: bool) -> None:
        """Stop the thread; if this process has failed, the others end, too."""
        self._stop.set()
        self._thread.join()
        try:
            if failed:
                name = f"Process {self.rank} of {self.size}"
                self.store.set(FAILED, f"{name} has ended with an error: see its own message.")
            self._count(LEFT)
        except RuntimeError:  # the store has ended: no other process is left
            pass

    def _count(self, value: bytes) -> None:
        self.store.set(str(self.rank), value.decode())

    def _run(self) -> None:
        count, seen, since = 0, b"", time.monotonic()
        while not self._stop.wait(self.interval):
            count += 1
            try:
                self._count(str(count).encode())
                value, reason = self._check_next(seen)
                if value != seen or value == LEFT:
                    seen, since = value, time.monotonic()
                if not reason and time.monotonic() - since > self.timeout:
                    reason = self._report_death()
            except RuntimeError as error:
                reason = f"The store of torchrun cannot be reached: {error}."
            if reason:
                if not self._stop.wait(self.grace):
                    self.on_death(reason)
                return

    def _check_next(self, seen: bytes) -> tuple[bytes, str]:
        """The counter of the next process, and why all processes must end; "" if they need not."""
        if self.store.check([FAILED]):
            return seen, self.store.get(FAILED).decode()
        key = str((self.rank + 1) % self.size)
        return (self.store.get(key) if self.store.check([key]) else seen), ""

    def _report_death(self) -> str:
        """Write into the store that the next process is dead; returns the message."""
        number = (self.rank + 1) % self.size
        key = f"name/{number}"
        name = f" ({self.store.get(key).decode()})" if self.store.check([key]) else ""
        reason = (
            f"Process {number} of {self.size}{name} has not responded for "
            f"{self.timeout:.0f} seconds."
        )
        self.store.set(FAILED, reason)
        return reason
