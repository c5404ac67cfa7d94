"""The number of threads of a call, fewer on a busy machine.

A call of a millisecond ends when its last thread ends, and a thread whose core is taken by another
program ends later than the call would have taken on one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

Result = TypeVar("Result")

TRIALS = 3  # calls of each way that are compared
SHORTEST_REST, LONGEST_REST = 32, 512  # calls between two comparisons
OUTLIER = 2.0  # times the usual seconds, after which the ways are compared at once
GAIN = 0.85  # of the seconds: less is no reason to change


class ThreadTuner:
    """Similar calls, one after the other, on several threads or on one."""

    def __init__(self) -> None:
        self.one_thread = False  # what is thought to be faster
        self.seconds: list[float] = []  # for each unit of size, of the last calls in this way
        self.other: list[float] = []  # of those in the other way, while the two are compared
        # Calls until the next comparison, and from then on.
        self.left, self.rest = 2 * TRIALS, SHORTEST_REST

    def timed(self, threads: int, call: Callable[[int], Result], size: int = 1) -> Result:
        """`call` with so many threads, or with one. size: what its seconds grow with."""
        if threads == 1:
            return call(1)
        trying = self.left <= 0
        started = perf_counter()
        result = call(1 if self.one_thread != trying else threads)
        self._record((perf_counter() - started) / size, trying)
        return result

    def _record(self, seconds: float, trying: bool) -> None:
        if trying:
            self.other.append(seconds)
            if len(self.other) >= TRIALS:
                self._compare()
            return
        usual = min(self.seconds, default=seconds)
        self.seconds = [*self.seconds[1 - TRIALS :], seconds]
        self.left -= 1
        if not self.one_thread and seconds > OUTLIER * usual:
            self.left = min(self.left, TRIALS)

    def _compare(self) -> None:
        if sum(self.other) < GAIN * sum(self.seconds):
            self.one_thread, self.rest = not self.one_thread, SHORTEST_REST
            self.seconds = self.other
        else:
            self.rest = min(2 * self.rest, LONGEST_REST)
        self.left, self.other = self.rest, []
