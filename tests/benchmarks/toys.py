"""Conditions for the tests of how conditions are run."""

from __future__ import annotations

import os
import time
from pathlib import Path


class Sleeps:
    """A condition whose turn sleeps for so many seconds."""

    def __init__(self, seconds: float, threads: int):
        self.seconds, self.turns, self.threads = seconds, 0, threads

    def ready(self) -> None:
        """Not timed."""
        time.sleep(0.05)

    def turn(self) -> int:
        """How many turns there were."""
        time.sleep(self.seconds)
        self.turns += 1
        print("libraries print, and that is no answer")
        return self.turns


class Breaks:
    """A condition that fails in its turn."""

    def __init__(self, threads: int):
        pass

    def turn(self) -> None:
        """Fails."""
        raise ValueError("broken")


class Computes:
    """A condition that uses so many seconds of CPU time and returns them."""

    def __init__(self, seconds: float, threads: int):
        self.seconds = seconds

    def turn(self) -> float:
        """Works."""
        began = time.process_time()
        while time.process_time() - began < self.seconds:
            pass
        return time.process_time() - began


def write_large(folder: str) -> None:
    """Write this process's id while 200 MB are held."""
    held = bytearray(200 * 2**20)
    held[::4096] = b"x" * len(held[::4096])
    Path(folder, "writer").write_text(f"{os.getpid()} {len(held) >> 20}")


class Opens:
    """A condition that opens the written file."""

    def __init__(self, folder: str, threads: int):
        self.found = Path(folder, "writer").read_text()

    def turn(self) -> list[int]:
        """The process that wrote it, and its megabytes."""
        return [int(each) for each in self.found.split()]
