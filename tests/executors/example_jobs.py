"""Functions that the tests of executors run as jobs."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from regard.errors import DataError
from regard.executors.local import SHAPE_CACHES
from regard.training.interrupt import Interrupted, Interruption


def double(number: int) -> int:
    return 2 * number


def say(text: str) -> None:
    print(text)
    print("and so on", file=sys.stderr, end="")


def fail(path: str) -> None:
    raise DataError(path, 3, "is wrong.")


def break_down() -> None:
    raise TypeError("a bug")


def die_at_first(folder: str, times: int) -> int:
    """Killed so many times; then how often it has begun."""
    begun = len(list(Path(folder).iterdir()))
    (Path(folder) / str(begun)).touch()
    if begun < times:
        os.kill(os.getpid(), signal.SIGKILL)
    return begun + 1


def facts() -> dict[str, str | None]:
    names = "OMP_NUM_THREADS", "RAYON_NUM_THREADS", "CUDA_VISIBLE_DEVICES", *SHAPE_CACHES
    return {name: os.environ.get(name) for name in names}


def work(folder: str, name: str, stubborn: bool = False) -> str:
    """Works until it is told to stop, then saves."""
    Path(folder, f"{name}.pid").write_text(str(os.getpid()))
    with Interruption(repeated=True) as interruption:
        while stubborn or not interruption.code:
            time.sleep(0.01)
    Path(folder, f"{name}.saved").touch()
    raise Interrupted("saved", interruption.code)


def stopped_at_first(folder: str) -> str:
    """At first works until it is told to stop; the next time it returns at once."""
    if Path(folder, "0.saved").exists():
        return "after 1 stop"
    return work(folder, "0")
