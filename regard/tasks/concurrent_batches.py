"""Batches that are computed at the same time, each with its share of the threads.

An operation that several threads share ends when the last of them ends. Where another program uses
one of the cores, every operation waits for it; batches of their own threads do not wait for each
other.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import TypeVar

import numpy as np
import torch

from regard.attention.capture import captured_or_gated
from regard.data.encoder_inputs import InputArrays
from regard.data.sampler import PaddedBatches

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
    number of tokens that none of `concurrent` threads waits for the others at the end. Where
    attention is captured, the inputs of a batch keep their order, by which pictures number them.
    """
    whole = inputs.longest_first(pad, max_tokens=max_tokens)
    if captured_or_gated():
        return replace(whole, indices=[np.sort(batch) for batch in whole.indices])
    lengths = np.stack([column.lengths for column in whole.columns]).max(0)
    if concurrent == 1 or lengths.sum() < concurrent * FEWEST_TOKENS:
        return whole
    order = np.concatenate(whole.indices)
    order = order[np.argsort(-lengths[order], kind="stable")]
    count = -(-len(whole) // concurrent) * concurrent
    while count < len(order):
        batches = _even(order, lengths[order], count)
        if all(len(part) == 1 or len(part) * lengths[part[0]] <= max_tokens for part in batches):
            return replace(whole, indices=batches)
        count += concurrent
    return whole


def _even(order: np.ndarray, lengths: np.ndarray, count: int) -> list[np.ndarray]:
    """The inputs in `order`, of these lengths, in `count` parts of about as many tokens each."""
    ends = lengths.cumsum()
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count)
    return [part for part in np.split(order, np.unique(cuts + 1)) if len(part)]


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


@cache
def _pool(concurrent: int, threads: int) -> ThreadPoolExecutor:
    """Threads that compute a batch each, with so many threads of their own; kept, since a new one
    takes time for its memory.

    All of them start here: what one sets is also the number of other threads that torch meets for
    the first time, until this one sets it again.
    """
    before, all_run = torch.get_num_threads(), threading.Barrier(concurrent)
    pool = ThreadPoolExecutor(concurrent, initializer=_use, initargs=(threads,))
    wait([pool.submit(all_run.wait) for _ in range(concurrent)])
    torch.set_num_threads(before)
    return pool


def _use(threads: int) -> None:
    """Give this thread so many threads of torch."""
    torch.set_num_threads(threads)
    torch.get_num_threads()  # else torch's first operation would take the number of that moment


os.register_at_fork(after_in_child=_pool.cache_clear)
