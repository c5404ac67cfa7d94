"""Batches that are computed at the same time, each with its share of the threads.

An operation that several threads share ends when the last of them ends. Where another program uses
one of the cores, every operation waits for it; batches of their own threads do not wait for each
other.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from itertools import islice
from typing import TypeVar

import numpy as np
import torch

from regard.attention.head_gates import captured_or_gated
from regard.data.bucketing import PaddedBatches
from regard.data.encoder_inputs import InputArrays

CONCURRENT = 2  # batches that are computed at the same time
FEWEST_TOKENS = 192  # of a batch: what smaller ones would gain is lost to the threads of Python
AHEAD = 2  # batches for each that is computed, which wait for a thread or for their use
Batch = TypeVar("Batch")
Result = TypeVar("Result")


def passes_at_once(device: torch.device) -> int:
    """How many batches an encoder computes at the same time: one where attention is captured, whose
    order would be lost, on one thread, and on other devices than a CPU.
    """
    alone = device.type != "cpu" or captured_or_gated()
    return 1 if alone else min(CONCURRENT, torch.get_num_threads())


def even_batches(
    inputs: InputArrays, pad: int | None, max_tokens: int, concurrent: int
) -> PaddedBatches:
    """All inputs once, longest first, in batches of at most `max_tokens`; so many of about the same
    size that none of `concurrent` threads waits for the others at the end.
    """
    whole = inputs.longest_first(pad, max_tokens=max_tokens)
    lengths = np.stack([column.lengths for column in whole.columns]).max(0)
    total, longest = int(lengths.sum()), int(lengths.max())
    if concurrent == 1 or total < concurrent * FEWEST_TOKENS:
        return whole
    rounds = -(-total // (concurrent * max(longest, max_tokens - longest)))
    even = -(-total // (concurrent * rounds)) + longest
    return inputs.longest_first(pad, max_tokens=min(max_tokens, even))


def computed(
    compute: Callable[[Batch], Result], batches: Sequence[Batch], concurrent: int
) -> Iterator[Result]:
    """`compute` of each batch, in order; `concurrent` of them at the same time."""
    threads = torch.get_num_threads()
    concurrent = min(concurrent, threads, len(batches))
    if concurrent < 2:
        yield from map(compute, batches)
        return
    pool = _pool(concurrent, threads // concurrent)
    coming = (pool.submit(copy_context().run, compute, batch) for batch in batches)
    waiting = deque(islice(coming, concurrent * AHEAD))
    try:
        while waiting:
            yield waiting[0].result()
            waiting.popleft()
            waiting.extend(islice(coming, 1))
    finally:
        for future in waiting:
            if not future.cancel():
                future.exception()  # waits for its end
        torch.set_num_threads(threads)  # of threads to come, too, which a thread of the pool sets


@cache
def _pool(concurrent: int, threads: int) -> ThreadPoolExecutor:
    """Threads that compute a batch each, with so many threads of their own; kept, since a new one
    takes time for its memory.
    """
    return ThreadPoolExecutor(concurrent, initializer=torch.set_num_threads, initargs=(threads,))


os.register_at_fork(after_in_child=_pool.cache_clear)
