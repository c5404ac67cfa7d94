"""Many texts through a model: similar lengths together, results in the order of the texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import replace
from itertools import chain
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch

from regard import decoding
from regard.attention.gates import gating
from regard.attention.tap import listening
from regard.data import FieldEncoder, Sequences, TokenArray, sorted_batches
from regard.decoding.beam import Beam
from regard.decoding.greedy import Greedy
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.steps import NotNumbers, evaluating
from regard.errors import TextError
from regard.layers.quantized import QuantizedLinear
from regard.models.protocols import Encoder
from regard.models.wrappers import unwrapped
from regard.tasks.finite_checks import not_finite_error
from regard.tasks.inputs import checked_texts

Made = TypeVar("Made")
TooLong = Literal["error", "truncate"]
Answers = list[list[Hypothesis]]
Watcher = Callable[[Sequence[Any]], Iterator[Any]]
PLACES = {"cpu": 2560}  # source tokens times hypotheses that are decoded at once: what caches hold
ELSEWHERE = 8192
BESIDE = 2  # batches that quantized weights meet at the same time
FEWEST = 4  # sentences for which the weights are still read


_watcher: ContextVar[Watcher] = ContextVar("watcher", default=iter)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Inside, `watcher` hands on the batches of long work one by one, and so sees how far it is."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def watched(batches: Sequence[Made]) -> Iterator[Made]:
    """The batches one by one; see `watching`."""
    return _watcher.get()(batches)


class Latest(Generic[Made]):
    """A function of texts that keeps what it gave last, unless that is much.

    Texts are cut into pieces to be measured, and then to be answered.
    """

    MOST = 4096  # texts

    def __init__(self, make: Callable[[list[Any]], list[Made]]):
        self.make = make
        self.last: tuple[list[Any], list[Made]] = ([], [])

    def __call__(self, texts: list[Any]) -> list[Made]:
        """One for each text."""
        asked, made = self.last
        if asked != texts:
            made = self.make(texts)
            self.last = (texts, made) if len(texts) <= self.MOST else ([], [])
        return list(made)


def device_of(model: Any) -> torch.device:
    """Where the weights are; quantized ones are no parameters."""
    model = unwrapped(model)
    return next(chain(model.parameters(), model.buffers())).device


def training_layout(encoder: Encoder, batch: Sequences) -> Sequences:
    """A batch as an encoder reads it in training: unpadded where that is faster.

    It stays padded where there is little padding, while attention capture or head gating is on,
    and on other devices than a CPU: counting tokens would synchronize with them.
    """
    if encoder.training and encoder.unpadded and saves_padding(batch):
        return batch.unpadded()
    return batch


MIN_PADDING = 16  # tokens below which a batch stays padded


def saves_padding(*batches: Sequences) -> bool:
    """Whether it is worth it to remove the padding of one of these."""
    if listening.get() is not None or gating.get() is not None:
        return False
    if any(one.lengths.device.type != "cpu" or not one.ids.numel() for one in batches):
        return False
    padding = [one.ids.numel() - int(one.lengths.sum()) for one in batches]
    return max(padding) >= MIN_PADDING and all(int(one.lengths.min()) > 0 for one in batches)


def encode_texts(texts: Sequence[str], column: FieldEncoder, too_long: TooLong) -> TokenArray:
    """Texts as a model reads them.

    Raises:
        RegardError: a text is longer than `column.max_length` and `too_long` is "error".
    """
    rows = column.encode_many(checked_texts(texts))
    long = column.over_limit(rows)
    if long and too_long == "error":
        count = len(rows[long[0]])
        problem = f"has {count} tokens, but this model reads at most {column.max_length}."
        hint = "Shorten it, or cut its end with too_long='truncate'."
        raise TextError(long[0], problem, hint)
    for i in long:
        rows[i] = column.truncated(rows[i])
    return TokenArray.of(rows)


def long_ones(texts: Sequence[str], column: FieldEncoder) -> dict[int, int]:
    """The places of texts longer than `column.max_length`, and how many tokens each has."""
    rows = column.encode_many(checked_texts(texts))
    return {i: len(rows[i]) for i in column.over_limit(rows)}


@torch.no_grad()
def decode_in_order(model: Any, rows: TokenArray, method: Any) -> list[list[Hypothesis]]:
    """The hypotheses of each row; a row's answer does not depend on its company.

    Raises:
        NonFiniteScores: the scores of what follows a row are infinite or not numbers.
    """
    found: list[list[Hypothesis]] = [[] for _ in range(len(rows))]
    if not len(rows):
        return found
    device = device_of(model)
    width = method.size if isinstance(method, Beam) else 1
    searches = isinstance(method, Beam | Greedy) and not model.continues
    beside = BESIDE if searches and _quantized(model) else 1
    budget = max(1, PLACES.get(device.type, ELSEWHERE) // (width * beside))
    pads = (model.config.pad,)
    batches = sorted_batches((rows,), pads, max_tokens=budget, make=lambda sources: sources)
    if beside > 1:
        batches = replace(batches, indices=smaller_at_the_end(batches.indices, beside))

    def decode(batch: Sequences) -> Answers:
        return decoding.generate(model, batch.to(device), method)

    with evaluating(model):
        decoded, done = _answers(decode, batches, beside), 0
        try:
            for numbers, answers in zip(watched(batches.indices), decoded, strict=True):
                done += 1
                for number, hypotheses in zip(numbers, answers, strict=True):
                    found[number] = hypotheses
        except NotNumbers:
            _name_the_first(decode, rows, sorted(batches.indices[done].tolist()), *pads)
            raise
    return found


def _name_the_first(
    decode: Callable[[Sequences], Answers],
    rows: TokenArray,
    numbers: Sequence[int],
    pad: int | None,
) -> None:
    """Decodes rows one by one until the scores of one are no numbers.

    Raises:
        NonFiniteScores: names it.
    """
    for number in numbers:
        try:
            decode(rows.padded(np.array([number]), pad))
        except NotNumbers:
            raise not_finite_error(number, "scores") from None


def smaller_at_the_end(batches: Sequence[np.ndarray], beside: int) -> list[np.ndarray]:
    """The same rows in the same order, in smaller and smaller batches at the end, of which whoever
    is free takes the next: all who decode beside each other are done at about the same time.
    """
    left = np.concatenate(batches[-2 * beside :])
    found = list(batches[: -2 * beside])
    most = max(map(len, batches))
    while len(left):
        count = min(most, max(FEWEST, -(-len(left) // (2 * beside))))
        found.append(left[:count])
        left = left[count:]
    return found


def _quantized(model: torch.nn.Module) -> bool:
    """Whether a step may be a compiled call, during which Python can do other things."""
    return any(isinstance(module, QuantizedLinear) for module in model.modules())


def _answers(
    decode: Callable[[Sequences], Answers], batches: Sequence[Sequences], beside: int
) -> Iterator[Answers]:
    """Of each batch, in their order.

    A step of a search is some work for all threads, then some for one. Where batches are decoded
    beside each other, each with its part of the threads, none waits. The first goes alone: what is
    made when a model is first used is made only once.
    """
    yield decode(batches[0])
    threads, others = torch.get_num_threads(), range(1, len(batches))
    if min(beside, threads, len(others)) < 2:
        yield from (decode(batches[at]) for at in others)
        return
    pool = ThreadPoolExecutor(
        beside, initializer=torch.set_num_threads, initargs=(threads // beside,)
    )
    try:
        waiting = [pool.submit(copy_context().run, decode, batches[at]) for at in others]
        yield from (answers.result() for answers in waiting)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
