"""How many threads calls have: those that were faster lately."""

from __future__ import annotations

import pytest

from regard.kernels import thread_tuner
from regard.kernels.thread_tuner import LONGEST_REST, SHORTEST_REST, TRIALS, ThreadTuner


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

    monkeypatch.setattr(thread_tuner, "perf_counter", lambda: Clock.now)
    return Clock


def run(one: ThreadTuner, clock, count: int, seconds: dict[int, float]) -> list[int]:
    """The threads of so many calls, which take so long with one thread or with two."""

    def call(threads: int) -> int:
        clock.now += seconds[threads]
        return threads

    return [one.timed(2, call) for _ in range(count)]


QUIET, BUSY = {1: 3.3, 2: 2.8}, {1: 3.3, 2: 7.0}


def test_threads_share_where_that_is_faster(clock):
    assert run(ThreadTuner(), clock, 4096, QUIET).count(1) < 4096 / 100


def test_alone_where_others_have_the_cores(clock):
    found = run(ThreadTuner(), clock, 1000, BUSY)
    assert found[:2] == [2, 2] and found[3 * TRIALS :].count(2) < 50


def test_what_changes_is_seen(clock):
    one = ThreadTuner()
    run(one, clock, 1000, QUIET)
    assert run(one, clock, 4 * TRIALS, BUSY)[-1] == 1
    run(one, clock, 1000, BUSY)
    assert run(one, clock, LONGEST_REST + 2 * TRIALS, QUIET)[-1] == 2


def test_growing_calls_are_no_late_ones(clock):
    one, found = ThreadTuner(), []
    for step in range(1000):
        found += run(one, clock, 1, {threads: 1 + step / 100 + 1 / threads for threads in (1, 2)})
    assert found.count(1) < 1000 / SHORTEST_REST * TRIALS


def test_one_thread_is_not_timed(clock):
    assert ThreadTuner().timed(1, lambda threads: (threads, "found")) == (1, "found")


def test_calls_of_other_sizes_are_no_slower_ones(clock):
    """Prompts of 513 tokens beside some of 1,000, at rest: two threads share them."""
    one, found = ThreadTuner(), []
    for number in range(2000):
        size = 1000 if number // 3 % 2 else 513

        def call(threads: int, size: int = size) -> int:
            clock.now += size * QUIET[threads]
            return threads

        found.append(one.timed(2, call, size=size))
    assert found.count(1) < len(found) / 50
