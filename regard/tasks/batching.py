"""Many texts through a model: batches of similar lengths, results in the order of the texts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from itertools import chain
from typing import Any, Generic, Literal, TypeVar, get_args

import numpy as np
import torch

from regard import decoding
from regard.attention.capture import captured_or_gated
from regard.data import FieldEncoder, Sequences, TokenArray, sorted_batches
from regard.decoding.beam import Beam
from regard.decoding.loop import Greedy
from regard.decoding.steps import Hypothesis, NonFiniteStep, evaluating
from regard.errors import ConfigError
from regard.layers.quantized import QuantizedLinear
from regard.models.protocols import Encoder, Generator, Model
from regard.models.wrappers import unwrapped
from regard.tasks.concurrent_batches import CONCURRENT, computed
from regard.tasks.finite_checks import not_finite_error
from regard.tasks.inputs import checked_texts, too_long_error

Made = TypeVar("Made")
TooLong = Literal["error", "truncate"]
BatchHypotheses = list[list[Hypothesis]]
Watcher = Callable[[Sequence[Any]], Iterator[Any]]
TOKENS_AT_ONCE = {"cpu": 2560}  # source tokens times hypotheses of a batch: what caches hold
ELSEWHERE = 8192  # on other devices
SMALLEST = 4  # sentences in a batch, at least


_watcher: ContextVar[Watcher] = ContextVar("watcher", default=iter)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Inside, the batches of long work pass through `watcher`, which can report progress."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def watched(batches: Sequence[Made]) -> Iterator[Made]:
    """The batches one by one; see `watching`."""
    return _watcher.get()(batches)


class Latest(Generic[Made]):
    """A function of texts that caches its last result, unless that is large.

    Texts are encoded once for their lengths and for the predictions.
    """

    MOST = 4096  # texts

    def __init__(self, make: Callable[[list[Any]], list[Made]]):
        self.make = make
        self.last: tuple[list[Any], list[Made]] = ([], [])

    def __call__(self, texts: list[Any]) -> list[Made]:
        """The result for each text."""
        last, results = self.last
        if last != texts:
            results = self.make(texts)
            self.last = (texts, results) if len(texts) <= self.MOST else ([], [])
        return list(results)


def device_of(model: Model | torch.nn.Module) -> torch.device:
    """Where the weights are; quantized ones are buffers."""
    module: torch.nn.Module = unwrapped(model)
    return next(chain(module.parameters(), module.buffers())).device


def without_padding(encoder: Encoder, batch: Sequences) -> Sequences:
    """A batch as an encoder reads it: unpadded where that is faster.

    It stays padded where there is little padding, while attention capture or head gating is on,
    and on other devices than a CPU: counting tokens would synchronize with them.
    """
    return batch.unpadded() if encoder.unpadded and saves_padding(batch) else batch


MIN_PADDING = 16  # tokens below which a batch stays padded


def saves_padding(*batches: Sequences) -> bool:
    """Whether it is worth it to remove the padding of one of these."""
    if captured_or_gated():
        return False
    if any(batch.lengths.device.type != "cpu" or not batch.ids.numel() for batch in batches):
        return False
    padding = [batch.ids.numel() - int(batch.lengths.sum()) for batch in batches]
    return max(padding) >= MIN_PADDING and all(int(batch.lengths.min()) > 0 for batch in batches)


def check_too_long(too_long: TooLong) -> None:
    """Check an option of functions that read texts, also of those for which no text is too long.

    Raises:
        ConfigError: there is no such value.
    """
    if too_long not in get_args(TooLong):
        raise ConfigError(f'`too_long` must be "error" or "truncate", but is {too_long!r:.80}.')


def encode_texts(texts: Sequence[str], column: FieldEncoder, too_long: TooLong) -> TokenArray:
    """Texts as a model reads them.

    Raises:
        RegardError: a text is longer than `column.max_length` and `too_long` is "error".
    """
    check_too_long(too_long)
    encoded = column.encode_many(checked_texts(texts))
    long = column.over_limit(encoded)
    if long and too_long == "error":
        raise too_long_error(long[0], len(encoded[long[0]]), column.max_length)
    for i in long:
        encoded[i] = column.truncated(encoded[i])
    return TokenArray.of(encoded)


def over_limit(texts: Sequence[str], column: FieldEncoder) -> dict[int, int]:
    """The indices of texts longer than `column.max_length`, and the tokens of each."""
    encoded = column.encode_many(checked_texts(texts))
    return {i: len(encoded[i]) for i in column.over_limit(encoded)}


@torch.no_grad()
def decode_in_order(model: Generator, sources: TokenArray, method: Any) -> list[list[Hypothesis]]:
    """The hypotheses of each source; they do not depend on the other sources.

    Raises:
        NonFiniteScores: scores for a source are infinite or NaN.
    """
    results: list[list[Hypothesis]] = [[] for _ in range(len(sources))]
    if not len(sources):
        return results
    device = device_of(model)
    width = method.size if isinstance(method, Beam) else 1
    searches = isinstance(method, Beam | Greedy) and not model.continues
    concurrent = CONCURRENT if searches and _quantized(model) else 1
    budget = max(1, TOKENS_AT_ONCE.get(device.type, ELSEWHERE) // (width * concurrent))
    pads = (model.config.pad,)
    batches = sorted_batches((sources,), pads, max_tokens=budget, make=lambda batch: batch)
    if concurrent > 1:
        batches = replace(batches, indices=smaller_at_the_end(batches.indices, concurrent))

    def decode(batch: Sequences) -> BatchHypotheses:
        return decoding.generate(model, batch.to(device), method)

    with evaluating(model):
        decoded, done = _decoded(decode, batches, concurrent), 0
        try:
            for numbers, answers in zip(watched(batches.indices), decoded, strict=True):
                done += 1
                for number, hypotheses in zip(numbers, answers, strict=True):
                    results[number] = hypotheses
        except NonFiniteStep:
            _raise_for_source(decode, sources, sorted(batches.indices[done].tolist()), *pads)
            raise
    return results


def _raise_for_source(
    decode: Callable[[Sequences], BatchHypotheses],
    sources: TokenArray,
    numbers: Sequence[int],
    pad: int | None,
) -> None:
    """Decode sources one by one until the scores of one are infinite or NaN.

    Raises:
        NonFiniteScores: for that source.
    """
    for number in numbers:
        try:
            decode(sources.padded(np.array([number]), pad))
        except NonFiniteStep:
            raise not_finite_error(number, "scores") from None


def smaller_at_the_end(batches: Sequence[np.ndarray], concurrent: int) -> list[np.ndarray]:
    """The same sources in the same order, in smaller batches at the end, so that batches that are
    decoded concurrently end at about the same time.
    """
    left = np.concatenate(batches[-2 * concurrent :])
    smaller = list(batches[: -2 * concurrent])
    largest = max(map(len, batches))
    while len(left):
        count = min(largest, max(SMALLEST, -(-len(left) // (2 * concurrent))))
        smaller.append(left[:count])
        left = left[count:]
    return smaller


def _quantized(model: Generator) -> bool:
    """Whether a step may be a compiled call, during which Python can do other things."""
    module: torch.nn.Module = unwrapped(model)
    return any(isinstance(part, QuantizedLinear) for part in module.modules())


def _decoded(
    decode: Callable[[Sequences], BatchHypotheses], batches: Sequence[Sequences], concurrent: int
) -> Iterator[BatchHypotheses]:
    """The hypotheses of each batch, in order.

    A step of a search is work for all threads, then for one. Concurrent batches, each with its
    share of the threads, keep all of them busy. The first batch runs alone, because caches are
    created on the first use of a model.
    """
    yield decode(batches[0])
    yield from computed(decode, [batches[i] for i in range(1, len(batches))], concurrent)
