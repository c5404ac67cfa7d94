"""Lease files: which worker computes a shard, and how others notice that this worker has died.

    leases = Leases(folder, timeout=60.0)
    with leases.renewing():
        if lease := leases.take("00012"):     # None: another worker has it
            ...
            if not lease.lost: ...
            lease.release()

A lease is a file that its owner creates exclusively (O_EXCL), and in which it increases a counter
regularly. Another worker removes the file when the counter has not changed for `timeout` seconds,
which it measures by its own monotonic clock, since the clocks of two machines differ; or
immediately if the owner was a process of the same machine that has ended. An owner that was only
slow sees by `lost` that its file is gone.

The content of the file is one line: the owner's name, the process (boot id of the machine and pid
namespace, pid, start time) and the counter.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regard.file_writing import rename_new

LEASE_TIMEOUT = 60.0  # seconds without a renewal after which the owner counts as dead


class Lease:
    """A lease that this process holds.

    owner: a unique name of the worker.  process: see `this_process`.
    """

    def __init__(self, path: Path, descriptor: int, owner: str, process: str):
        self.path, self.owner, self._process = path, owner, process
        self._descriptor = descriptor
        self._counter = 0
        self._lock = threading.Lock()
        self.renew()

    def renew(self) -> None:
        """Increase the counter, so that others see that the owner is alive."""
        with self._lock, suppress(OSError):  # a full or absent disk: the next renewal may succeed
            if self._descriptor >= 0:
                line = f"{self.owner} {self._process} {self._counter:020}\n"
                os.pwrite(self._descriptor, line.encode(), 0)
                self._counter += 1

    @property
    def lost(self) -> bool:
        """Whether another worker has removed the lease."""
        return not _same_file(self.path, self._descriptor)

    def release(self) -> None:
        """Remove the file, unless the lease is lost."""
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
    """The leases in a folder, which is made; one worker uses this object.

    timeout: seconds without a renewal after which the owner of a lease counts as dead.
    """

    def __init__(self, folder: Path, timeout: float = LEASE_TIMEOUT):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.timeout = folder, timeout
        self.owner, self._process = uuid.uuid4().hex, this_process()
        self._held: set[Lease] = set()
        # lease file -> its content, and when it was first seen with this content
        self._seen: dict[str, tuple[bytes, float]] = {}

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """Inside, a thread renews all leases of this worker; at the end they are released."""
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
        """The lease of this name; None where another worker has it, which seems to be alive."""
        path = self.folder / name
        lease = self._create(path)
        if lease is None and self._expired(path):
            lease = self._create(path)
        if lease is not None:
            self._seen.pop(name, None)
            self._held.add(lease)
        return lease

    def release(self, lease: Lease) -> None:
        """Release a lease that this worker holds."""
        self._held.discard(lease)
        lease.release()

    def _create(self, path: Path) -> Lease | None:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        except FileExistsError:
            return None
        return Lease(path, descriptor, self.owner, self._process)

    def _expired(self, path: Path) -> bool:
        """Whether the lease has expired; this process has then removed its file."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # its owner has released it meanwhile
            return True
        seen, since = self._seen.get(path.name, (b"", 0.0))
        if content != seen or path.name not in self._seen:
            self._seen[path.name] = content, time.monotonic()
            since = time.monotonic()
        if time.monotonic() - since <= self.timeout and not _owner_has_ended(content):
            return False
        return self._remove_expired(path, content)

    def _remove_expired(self, path: Path, content: bytes) -> bool:
        """Remove a lease file, unless its content has changed; whether it is removed.

        It is renamed first: of several processes one alone can do that. If it has changed
        meanwhile, somebody has renewed or replaced it, and it gets its name back.
        """
        renamed = path.with_name(f".{path.name}.{self.owner}")
        try:
            path.rename(renamed)
        except FileNotFoundError:
            return True
        try:
            if renamed.read_bytes() == content:
                return True
            with suppress(FileExistsError):
                rename_new(renamed, path)
            return False
        finally:
            renamed.unlink(missing_ok=True)


def this_process() -> str:
    """The machine, pid and start time of this process: together no other process has them."""
    return f"{_machine()} {os.getpid()} {_start_time(os.getpid())}"


def _machine() -> str:
    """Boot id of the machine and pid namespace; "-" where the system does not provide them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "-"


def _start_time(pid: int) -> str:
    """When a process has started, in clock ticks since the boot; "" if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _owner_has_ended(content: bytes) -> bool:
    """Whether the owner was a process of this machine that has ended."""
    fields = content.decode(errors="replace").split()
    if len(fields) != 5 or fields[1] == "-" or fields[1] != _machine():
        return False
    return fields[2].isdecimal() and _start_time(int(fields[2])) != fields[3]
