"""Whether threads that share a call help it: not on a busy machine, where they wait for each other.

A call of a millisecond ends when its last thread has come, and a thread whose core is taken by
another program comes late, by more than the call would have taken alone.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

Found = TypeVar("Found")

TRIED = 3  # calls that are compared, of each way
OFTEN, SELDOM = 32, 512  # calls between two comparisons
LATE = 2.0  # times the usual seconds, for which the ways are compared at once
GAIN = 0.85  # of the seconds: less is no reason to change


class Pace:
    """Calls that are alike, one after the other, by several threads or by one."""

    def __init__(self) -> None:
        self.alone = False  # what is thought to be faster
        self.seconds: list[float] = []  # for each unit of size, of the last calls in this way
        self.other: list[float] = []  # of those in the other way, while the two are compared
        self.left, self.rest = 2 * TRIED, OFTEN  # calls until the next comparison, and from then on

    def timed(self, threads: int, call: Callable[[int], Found], size: int = 1) -> Found:
        """`call` with so many threads, or with one. size: what its seconds grow with."""
        if threads == 1:
            return call(1)
        trying = self.left <= 0
        began = perf_counter()
        found = call(1 if self.alone != trying else threads)
        self._seen((perf_counter() - began) / size, trying)
        return found

    def _seen(self, seconds: float, trying: bool) -> None:
        if trying:
            self.other.append(seconds)
            if len(self.other) >= TRIED:
                self._compare()
            return
        usual = min(self.seconds, default=seconds)
        self.seconds = [*self.seconds[1 - TRIED :], seconds]
        self.left -= 1
        if not self.alone and seconds > LATE * usual:
            self.left = min(self.left, TRIED)

    def _compare(self) -> None:
        here, there = sum(self.seconds), sum(self.other)
        if there < GAIN * here:
            self.alone, self.rest = not self.alone, OFTEN
            self.seconds = self.other
        else:
            self.rest = min(2 * self.rest, SELDOM)
        self.left, self.other = self.rest, []
