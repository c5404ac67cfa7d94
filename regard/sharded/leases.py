"""Lease files: which worker computes a shard, and how others notice that this worker has died.

    leases = Leases(folder, timeout=60.0)
    with leases.renewing():
        if lease := leases.take("00012"):     # None: another worker has it
            ...
            if not lease.lost: ...
            lease.release()

A lease is a file that its owner creates exclusively (O_EXCL), and in which it increases a counter
regularly. Another worker removes it when the counter has not changed for `timeout` seconds of that
worker's own monotonic clock, so that no two clocks are compared; or at once if the owner was a
process of this machine that has ended. An owner that was only slow sees that its file is gone:
`lost`.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LEASE_TIMEOUT = 60.0  # seconds without a renewal after which the owner counts as dead


class Lease:
    """A lease that this process holds."""

    def __init__(self, path: Path, descriptor: int, owner: str):
        self.path, self._descriptor, self._owner = path, descriptor, owner
        self._count = 0
        self._lock = threading.Lock()
        self.renew()

    def renew(self) -> None:
        """Increase the counter, so that others see that the owner is alive."""
        with self._lock, suppress(OSError):  # a full or absent disk: the next count may succeed
            if self._descriptor >= 0:
                os.pwrite(self._descriptor, f"{self._owner} {self._count:020}\n".encode(), 0)
                self._count += 1

    @property
    def owner(self) -> str:
        """The unique name of the owner."""
        return self._owner.split()[0]

    @property
    def lost(self) -> bool:
        """Whether another worker has removed the lease."""
        return not _same_file(self.path, self._descriptor)

    def release(self) -> None:
        """Give the lease back."""
        with self._lock:
            if _same_file(self.path, self._descriptor):
                self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def _same_file(path: Path, descriptor: int) -> bool:
    try:
        return descriptor >= 0 and os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


class Leases:
    """The leases in a folder, which is made.

    timeout: seconds without a renewal after which the owner of a lease counts as dead.
    """

    def __init__(self, folder: Path, timeout: float = LEASE_TIMEOUT):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.timeout = folder, timeout
        self.owner = f"{uuid.uuid4().hex} {this_process()}"
        self._held: set[Lease] = set()
        self._seen: dict[str, tuple[bytes, float]] = {}  # the count, and since when it is the same

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """Inside, a thread renews all leases of this worker; at the end they are given back."""
        stop = threading.Event()

        def renew() -> None:
            while not stop.wait(self.timeout / 6):
                for lease in tuple(self._held):
                    lease.renew()

        thread = threading.Thread(target=renew, name="leases", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            for lease in tuple(self._held):
                self.release(lease)

    def take(self, name: str) -> Lease | None:
        """The lease of this name; None where another worker that is alive has it."""
        path = self.folder / name
        lease = self._create(path)
        if lease is None and self._expired(path):
            lease = self._create(path)
        if lease is not None:
            self._seen.pop(name, None)
            self._held.add(lease)
        return lease

    def release(self, lease: Lease) -> None:
        """Give a lease back."""
        self._held.discard(lease)
        lease.release()

    def _create(self, path: Path) -> Lease | None:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        except FileExistsError:
            return None
        return Lease(path, descriptor, self.owner)

    def _expired(self, path: Path) -> bool:
        """Whether the lease has expired, and this process has removed it."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # given back meanwhile
            return True
        seen, since = self._seen.get(path.name, (b"", 0.0))
        if content != seen or path.name not in self._seen:
            self._seen[path.name] = content, time.monotonic()
            since = time.monotonic()
        if time.monotonic() - since <= self.timeout and not _owner_has_ended(content):
            return False
        return self._take_away(path, content)

    def _take_away(self, path: Path, content: bytes) -> bool:
        """Rename the file, which one process can do; a lease that is younger is put back."""
        taken = path.with_name(f".{path.name}.{self.owner.split()[0]}")
        try:
            path.rename(taken)
        except FileNotFoundError:
            return True
        try:
            if taken.read_bytes() == content:
                return True
            with suppress(FileExistsError):
                os.link(taken, path)
            return False
        finally:
            taken.unlink()


def this_process() -> str:
    """A unique name of this process: boot id of the machine, pid namespace, pid and start time; "-"
    where the system does not provide them."""
    return _machine() + f" {os.getpid()} {_started(os.getpid())}"


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "-"


def _started(pid: int) -> str:
    """When a process has started, in ticks since the machine has; "" where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _owner_has_ended(content: bytes) -> bool:
    """Whether the owner was a process of this machine that is no longer there."""
    fields = content.decode(errors="replace").split()
    if len(fields) != 5 or fields[1] == "-" or fields[1] != _machine():
        return False
    return fields[2].isdecimal() and _started(int(fields[2])) != fields[3]
