"""Processes that notice within half a minute that another one has died.

Where a process dies, the others may wait for its numbers without end. So each counts in a store
that all of them reach, from a thread of its own, and looks at the count of the next one. The first
that misses a count says so in the store, and all end.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

EVERY = 1.0  # seconds between two counts
PATIENCE = 15.0  # seconds without a count after which a process is taken for dead
GRACE = 5.0  # seconds for the main thread to end by itself, with a message of its own
LEFT, FAILED = b"left", "failed"


def end_process(reason: str) -> NoReturn:
    """End this process, whatever it waits for."""
    print(f"error: {reason}{ADVICE}", file=sys.stderr, flush=True)
    os._exit(1)


ADVICE = (
    " This process ends, too. What was saved is not lost: `regard resume` goes on from the last "
    "checkpoint, with as many processes as you like."
)


def store_of_torchrun() -> Store:
    """A connection of its own to the store that torchrun keeps: a thread waits on it alone."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=PATIENCE))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"regard/heartbeat/{attempt}", store)


class Heartbeat:
    """The count of one process, and its look at the next one's.

    lost: is called with a sentence when another process has died.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        every: float = EVERY,
        patience: float = PATIENCE,
        grace: float = GRACE,
        lost: Callable[[str], None] = end_process,
    ):
        self.store, self.rank, self.size, self.lost = store, rank, size, lost
        self.every, self.patience, self.grace = every, patience, grace
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to count."""
        self.store.set(f"name/{self.rank}", f"pid {os.getpid()} on {platform.node()}")
        self._count(b"0")
        self._thread.start()

    def leave(self, *, failed: bool) -> None:
        """Stop counting; the others end, too, where this process has failed."""
        self._stop.set()
        self._thread.join()
        try:
            if failed:
                name = f"Process {self.rank} of {self.size}"
                self.store.set(FAILED, f"{name} has ended with an error: see its own message.")
            self._count(LEFT)
        except RuntimeError:  # nobody is left to be told
            pass

    def _count(self, value: bytes) -> None:
        self.store.set(str(self.rank), value.decode())

    def _run(self) -> None:
        beats, seen, since = 0, b"", time.monotonic()
        while not self._stop.wait(self.every):
            beats += 1
            try:
                self._count(str(beats).encode())
                value, reason = self._look(seen)
                if value != seen or value == LEFT:
                    seen, since = value, time.monotonic()
                if not reason and time.monotonic() - since > self.patience:
                    reason = self._accuse()
            except RuntimeError as error:
                reason = f"The store of torchrun is out of reach: {error}."
            if reason:
                if not self._stop.wait(self.grace):
                    self.lost(reason)
                return

    def _look(self, seen: bytes) -> tuple[bytes, str]:
        """The count of the next process, and why all must end; "" where they need not."""
        if self.store.check([FAILED]):
            return seen, self.store.get(FAILED).decode()
        key = str((self.rank + 1) % self.size)
        return (self.store.get(key) if self.store.check([key]) else seen), ""

    def _accuse(self) -> str:
        """Tell all processes that the next one is dead."""
        number = (self.rank + 1) % self.size
        key = f"name/{number}"
        name = f" ({self.store.get(key).decode()})" if self.store.check([key]) else ""
        reason = (
            f"Process {number} of {self.size}{name} has given no sign of life for "
            f"{self.patience:.0f} seconds."
        )
        self.store.set(FAILED, reason)
        return reason
