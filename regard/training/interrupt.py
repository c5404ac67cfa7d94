"""Ctrl-C and SIGTERM: finish the step, save, stop; a second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """The training was stopped from outside, after it had saved.

    code: the exit code by convention, 130 after Ctrl-C (SIGINT) and 143 after SIGTERM.
    """

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


class Paused(Interrupted):
    """The training has saved and stopped at `stop_after_fraction`; `resume` continues it.

    step, tokens: the steps and tokens so far.
    goal: the score that selects the weights, and "max" or "min".
    best: the best value so far, that of the present weights included; None where none was finite.
    """

    def __init__(self, step: int, tokens: int, goal: tuple[str, str], best: float | None):
        super().__init__(f"paused at step {step:,}, which is saved", 0)
        self.step, self.tokens, self.goal, self.best = step, tokens, goal, best


class Stopped(BaseException):
    """Raised by a signal inside an interruptible block; the loop turns it into `Interrupted`."""


class Interruption:
    """Listens for the signals while it is entered.

    code: 0 until a signal comes, then 128 + its number. Outside the main thread Python receives no
        signals, so it stays 0.

    repeated: whether more signals may follow that mean the same, as from torchrun and from Slurm;
        otherwise a second one raises KeyboardInterrupt.
    """

    def __init__(self, *, repeated: bool = False) -> None:
        self.code, self.repeated = 0, repeated
        self._is_interruptible = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._notice) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A long block that changes nothing, such as a validation.

        Raises:
            Stopped: at any point inside, when a signal comes; at its start, if one came before.
        """
        self._is_interruptible = True
        try:
            if self.code:
                raise Stopped
            yield
        finally:
            self._is_interruptible = False

    def _notice(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        second = bool(self.code) and not self.repeated
        self.code = 128 + number
        if second:
            raise KeyboardInterrupt
        if self._is_interruptible:
            raise Stopped
