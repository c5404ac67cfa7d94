"""Processes that die at the n-th thing they write: as a kill or a power cut would end them.

`killed_at(n, work)` runs `work()` in a forked process that ends without any cleaning up before its
n-th write: a file that is opened for writing, renamed, deleted, cut, a folder that is made. Every
second of the contents that are written is torn: the first half of it is on the disk.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

KILLED = 77
CHANGES = {
    *("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.link"),
    *("shutil.rmtree", "shutil.copyfile", "shutil.move"),
}


class Deadly:
    """Counts what a process writes below a folder, and ends the process at number `last`."""

    def __init__(self, last: int):
        self.last, self.count = last, 0

    def event(self) -> bool:
        """Count one; True where it is the last."""
        self.count += 1
        return self.count == self.last

    def audit(self, name: str, given: tuple[Any, ...]) -> None:
        writes = name == "open" and isinstance(given[2], int) and given[2] & os.O_ACCMODE
        if (writes and not str(given[0]).startswith("/dev/")) or name in CHANGES:
            if self.event():
                os._exit(KILLED)

    def tear(self) -> None:
        """Let contents be written by half where the count ends there."""
        write_text, pwrite = Path.write_text, os.pwrite

        def torn_text(path: Path, text: str, *rest: Any, **more: Any) -> int:
            if self.event():
                write_text(path, text[: len(text) // 2], *rest, **more)
                os._exit(KILLED)
            return write_text(path, text, *rest, **more)

        def torn_bytes(file: int, data: bytes, at: int) -> int:
            if self.event():
                pwrite(file, data[: len(data) // 2], at)
                os._exit(KILLED)
            return pwrite(file, data, at)

        Path.write_text = torn_text  # type: ignore[method-assign]
        os.pwrite = torn_bytes


def killed_at(last: int, work: Callable[[], Any]) -> bool:
    """Run `work` in a process of its own; whether it was killed. Its other failures are errors."""
    pid = os.fork()
    if pid == 0:
        try:
            deadly = Deadly(last)
            deadly.tear()
            os.fsync = lambda file: None  # a kill is no power cut: what was written stays written
            sys.addaudithook(deadly.audit)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, KILLED), f"write {last}: exit code {code}"
    return code == KILLED
