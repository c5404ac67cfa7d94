"""The thread tuner uses the number of threads whose recent calls were faster."""

from __future__ import annotations

import pytest

from regard.kernels import program
from regard.kernels.program import LONGEST_REST, SHORTEST_REST, TRIALS, ThreadTuner


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

    monkeypatch.setattr(program, "perf_counter", lambda: Clock.now)
    return Clock


def run(one: ThreadTuner, clock, count: int, seconds: dict[int, float]) -> list[int]:
    """The threads chosen for each call, given the times with one thread and with two."""

    def call(threads: int) -> int:
        clock.now += seconds[threads]
        return threads

    return [one.timed(2, call) for _ in range(count)]


QUIET, BUSY = {1: 3.3, 2: 2.8}, {1: 3.3, 2: 7.0}


def test_two_threads_are_used_where_they_are_faster(clock):
    assert run(ThreadTuner(), clock, 4096, QUIET).count(1) < 4096 / 100


def test_one_thread_is_used_where_two_are_slower(clock):
    found = run(ThreadTuner(), clock, 1000, BUSY)
    assert found[:2] == [2, 2] and found[3 * TRIALS :].count(2) < 50


def test_the_number_of_threads_follows_the_load(clock):
    one = ThreadTuner()
    run(one, clock, 1000, QUIET)
    assert run(one, clock, 4 * TRIALS, BUSY)[-1] == 1
    run(one, clock, 1000, BUSY)
    assert run(one, clock, LONGEST_REST + 2 * TRIALS, QUIET)[-1] == 2


def test_growing_calls_do_not_reduce_the_threads(clock):
    one, found = ThreadTuner(), []
    for step in range(1000):
        found += run(one, clock, 1, {threads: 1 + step / 100 + 1 / threads for threads in (1, 2)})
    assert found.count(1) < 1000 / SHORTEST_REST * TRIALS


def test_a_call_with_one_thread_gets_one_thread(clock):
    assert ThreadTuner().timed(1, lambda threads: (threads, "found")) == (1, "found")


def test_times_are_compared_for_each_size_of_call(clock):
    """Prompts of 513 tokens between prompts of 1,000 tokens on an idle machine."""
    one, found = ThreadTuner(), []
    for number in range(2000):
        size = 1000 if number // 3 % 2 else 513

        def call(threads: int, size: int = size) -> int:
            clock.now += size * QUIET[threads]
            return threads

        found.append(one.timed(2, call, size=size))
    assert found.count(1) < len(found) / 50
