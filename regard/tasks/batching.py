"""Many texts through a model: what fits into its context, batches, results in the texts' order.

An operation that several threads share ends when the last of them ends. Where another program uses
one of the cores, every operation waits for it; batches of their own threads do not wait for each
other.

Weights that diverged, or activations that overflow, would give a result that looks like any other.
So the last numbers that a model computes are checked once, before a result is made of them.

A model that carries a state has no context (`limit` None): every prompt fits.
"""

import math
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from regard import decoding, habit_names
from regard.attention.capture import captured_or_gated
from regard.data import FieldEncoder, Sequences, TokenArray, sorted_batches
from regard.data.encoder_inputs import InputArrays
from regard.data.sampler import PaddedBatches
from regard.decoding.beam import Beam
from regard.decoding.loop import Greedy
from regard.decoding.steps import Hypotheses, Hypothesis, NonFiniteStep, evaluating
from regard.errors import ConfigError, RegardError, TextError, TextTooLong, warn
from regard.layers.quantized import QuantizedLinear
from regard.models.protocols import Encoder, Generator, Model
from regard.models.wrappers import unwrapped
from regard.tasks.inputs import checked_texts, too_long_error

HINT = (
    "The model's weights may have diverged in training, or be too large for this precision: use "
    "other weights, or float32."
)


class NonFiniteScores(TextError):
    """What a model computes from a text is infinite or NaN."""


def check_finite(finite: Tensor, texts: Sequence[int], what: str = "scores") -> None:
    """Raise an error if what was computed from any text is not finite.

    finite: (B,) bool, for each example.  texts: (B,) index of the text of each example.

    Raises:
        NonFiniteScores: an example is not finite; the error names the first such text.
    """
    if bool(finite.all()):
        return
    raise not_finite_error(min(texts[row] for row in (~finite).nonzero()[:, 0].tolist()), what)


def not_finite_error(text: int, what: str) -> NonFiniteScores:
    """The error for the text with this index."""
    problem = f"has {what} that are infinite or NaN, so there is no result."
    return NonFiniteScores(text, problem, HINT)


def check_likelihood(nats: float, value: float) -> None:
    """Raise an error if the likelihood or the perplexity of a text is not finite.

    nats: minus the natural logarithm of the text's probability.  value: the reported perplexity.

    Raises:
        RegardError: one of them is not finite.
    """
    if not math.isfinite(nats):
        raise RegardError(
            f"The loss of this text is {nats}: some of the model's scores are infinite or "
            f"NaN. {HINT}"
        )
    if not math.isfinite(value):
        raise RegardError(
            f"The perplexity of this text is too large for a float: its loss is {nats:.6g} "
            f"nats. {HINT} If it is measured per word, measure it per token."
        )


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


Made = TypeVar("Made")
TooLong = Literal["error", "truncate"]
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
def decode_in_order(
    model: Generator,
    sources: TokenArray,
    method: Any,
    make: Callable[[Sequences], Sequences] = lambda batch: batch,
) -> Hypotheses:
    """The hypotheses of each source; they do not depend on the other sources.

    make: what the model reads of a batch of sources.

    Raises:
        NonFiniteScores: scores for a source are infinite or NaN.
    """
    results: Hypotheses = [[] for _ in range(len(sources))]
    if not len(sources):
        return results
    device = device_of(model)
    width = method.size if isinstance(method, Beam) else 1
    searches = isinstance(method, Beam | Greedy) and not model.continues
    module: torch.nn.Module = unwrapped(model)
    # Their steps may be compiled calls, during which Python can do other things.
    quantized = any(isinstance(part, QuantizedLinear) for part in module.modules())
    concurrent = CONCURRENT if searches and quantized else 1
    budget = max(1, TOKENS_AT_ONCE.get(device.type, ELSEWHERE) // (width * concurrent))
    pads = (model.config.pad,)
    batches = sorted_batches((sources,), pads, max_tokens=budget, make=make)
    if concurrent > 1:
        batches = replace(batches, indices=smaller_at_the_end(batches.indices, concurrent))

    def decode(batch: Sequences) -> Hypotheses:
        return decoding.generate(model, batch.to(device), method)

    with evaluating(model):
        decoded, done = _decoded(decode, batches, concurrent), 0
        try:
            for numbers, answers in zip(watched(batches.indices), decoded, strict=True):
                done += 1
                for number, hypotheses in zip(numbers, answers, strict=True):
                    results[number] = hypotheses
        except NonFiniteStep:
            for number in sorted(batches.indices[done].tolist()):
                try:
                    decode(make(sources.padded(np.array([number]), *pads)))
                except NonFiniteStep:
                    raise not_finite_error(number, "scores") from None
            raise
    return results


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


def _decoded(
    decode: Callable[[Sequences], Hypotheses], batches: Sequence[Sequences], concurrent: int
) -> Iterator[Hypotheses]:
    """The hypotheses of each batch, in order.

    A step of a search is work for all threads, then for one. Concurrent batches, each with its
    share of the threads, keep all of them busy. The first batch runs alone, because caches are
    created on the first use of a model.
    """
    yield decode(batches[0])
    yield from computed(decode, [batches[i] for i in range(1, len(batches))], concurrent)


def prompt_capacity(limit: int | None, options: Mapping[str, Any]) -> int | None:
    """The most tokens of a prompt after which `max_tokens` of `options` fit into the context.

    The last generated token is not read. Without `max_tokens`, or where it is relative to the
    prompt, one token must fit.

    Raises:
        ConfigError: `max_tokens` is larger than the context.
    """
    most_tokens = habit_names.decoding(options).get("max_tokens")
    if limit is None or most_tokens is None:
        return limit
    count = decoding.options(max_tokens=most_tokens).max_tokens
    if not isinstance(count, int):
        return limit
    if count > limit:
        raise ConfigError(
            f"Up to {count:,} tokens are asked for, but this model's context is {limit:,}. Lower "
            "`max_tokens`, or go on beyond the context: `window=True` (`--window`)."
        )
    return limit + 1 - count


def fitted_prompts(
    prompts: Sequence[list[int]],
    limit: int | None,
    too_long: TooLong,
    options: Mapping[str, Any],
) -> list[list[int]]:
    """The ids of prompts; long ones lose their beginning.

    Raises:
        TextTooLong: a prompt is too long and `too_long` is "error".
        ConfigError: `max_tokens` is larger than the context.
    """
    check_too_long(too_long)
    capacity = prompt_capacity(limit, options)
    if limit is None or capacity is None:
        return list(prompts)
    long = [i for i, ids in enumerate(prompts) if len(ids) > capacity]
    if long and too_long == "error":
        more, shorten = "", "Shorten the prompt"
        if capacity != limit:
            more = f" and up to {limit + 1 - capacity} more are asked for (max_tokens)"
            shorten = "Shorten the prompt, or lower `max_tokens`"
        count = len(prompts[long[0]])
        problem = f"has {count:,} tokens{more}, but this model's context is {limit:,}."
        raise TextTooLong(long[0], problem, shorten, "cut its beginning", what="Prompt")
    return [ids[-capacity:] for ids in prompts]


def warn_of_length_ends(
    counts: Iterable[int], hypotheses: Sequence[Hypothesis], limit: int | None, method: Any
) -> None:
    """Warn of texts that stopped at the end of what a model reads before anything else ended them.

    counts: tokens before each text that count for `limit`; a start token where there is none.
    """
    if limit is None:
        return
    longest = method.max_tokens if isinstance(method.max_tokens, int) else limit + 1
    ends = [
        hypothesis
        for count, hypothesis in zip(counts, hypotheses, strict=True)
        if not hypothesis.finished
        and max(count, 1) + len(hypothesis.tokens) > limit
        and len(hypothesis.tokens) < longest
    ]
    if ends:
        warn(
            f"{len(ends):,} of {len(hypotheses):,} texts stop at this model's limit of {limit:,} "
            "tokens",
        )


@contextmanager
def without_length_warnings() -> Iterator[None]:
    """No such warnings: for samples that a training shows, of which few end at first."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"[\d,]+ of [\d,]+ texts stop at")
        yield
