"""Conditions for the tests of how conditions are run."""

from __future__ import annotations

import time


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
