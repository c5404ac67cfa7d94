"""The likelihood of a text under a model that carries a state from token to token.

One sequence reads every weight once for each token. The state of most trained models converges: it
does not depend on where reading began more than some hundred tokens ago. The text of such a model
is read in segments side by side, each of which begins `overlap` tokens early; at the end every
segment's state must equal the state with which the next segment began. A model whose state does
not converge is evaluated sequentially. So is one for which it matters how many tokens are read at a
time, such as Transformer-XL, and one with a neural cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import torch

from regard.data import ParallelStreams, StreamBatch, TokenArray, WarmedStreams
from regard.errors import ConfigError, check_at_least
from regard.models.protocols import Generator, LanguageModel
from regard.models.wrappers import generator
from regard.ops import negative_log_likelihood
from regard.state import State
from regard.suggest import nearest
from regard.tasks.batching import device_of, watched
from regard.tasks.neural_cache import CacheState, NeuralCache, mixed_nats

SEQUENTIAL_STEPS = 256  # tokens of the single sequence at a time
SEGMENT_STEPS = 64  # tokens of each segment at a time
MOST_SEGMENTS = {"cpu": 32}  # as many as keep a processor busy
ELSEWHERE = 256  # on other devices
FEWEST_SEGMENTS = 4  # fewer do not pay
PER_OVERLAP = 8  # a segment has at least so many tokens for each token of its overlap
FIRST_OVERLAP = 64  # tokens; doubled until the states agree
NEURAL = "neural_cache"  # its size; how the names of its other options begin
TOLERANCE = 1e-2  # largest difference of states that count as equal


@dataclass(frozen=True)
class TextLikelihood:
    """nats: minus the log-likelihood of `count` tokens.  segments, overlap: how it was read."""

    nats: float
    count: int
    segments: int = 1
    overlap: int = 0


class StateOptions(TypedDict, total=False):
    """How a model that carries a state reads a text: options of evaluation.

    target_length: tokens that are read at a time.
    memory_length, max_distance: see `LanguageModel.with_memory`.
    neural_cache, neural_cache_theta, neural_cache_weight: size, theta and weight of a
        `regard.tasks.neural_cache.NeuralCache`.
    """

    target_length: int | None
    memory_length: int | None
    max_distance: int | None
    neural_cache: int | None
    neural_cache_theta: float | None
    neural_cache_weight: float | None


def given(options: StateOptions) -> dict[str, Any]:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def check_state_options(options: Mapping[str, Any]) -> None:
    """Check the names of options, and that lengths are whole numbers.

    Raises:
        ConfigError: there is no such option, or a length is out of range.
    """
    option_names = StateOptions.__annotations__
    if unknown := next((name for name in options if name not in option_names), None):
        raise ConfigError(f"Perplexity has no option {unknown!r}. {nearest(unknown, option_names)}")
    lengths = ("target_length", "max_distance", NEURAL)
    check_at_least(1, **{name: options.get(name) for name in lengths})
    check_at_least(0, memory_length=options.get("memory_length"))


def cache_of(options: StateOptions) -> NeuralCache | None:
    """The neural cache that evaluation is asked for.

    Raises:
        ConfigError: options of a cache without its size.
    """
    chosen = {name: value for name, value in given(options).items() if name.startswith(NEURAL)}
    size = chosen.pop(NEURAL, None)
    if size is None and chosen:
        raise ConfigError(
            f"`{next(iter(chosen))}` is given, but `{NEURAL}`, the positions that the cache "
            "holds, is not."
        )
    cache_options = {name.removeprefix(f"{NEURAL}_"): value for name, value in chosen.items()}
    return None if size is None else NeuralCache(size, **cache_options)


def signature(model: LanguageModel, options: StateOptions) -> str:
    """The state options in the signature of a score; "" where nothing is chosen."""
    length = options.get("target_length") or model.target_length
    facts: dict[str, Any] = {"target": length} if length else {}
    if model.target_length:
        config = model.config
        facts |= {"memory": config.memory_length, "max_distance": config.max_distance}
    if (cache := cache_of(options)) is not None:
        facts[NEURAL] = f"{cache.size},{cache.theta:g},{cache.weight:g}"
    return "".join(f"|{name}:{value}" for name, value in facts.items() if value is not None)


def carried_likelihood(
    model: LanguageModel, text: TokenArray, options: StateOptions
) -> TextLikelihood:
    """The likelihood of a text under a model in evaluation mode, read as the options say."""
    length, cache = options.get("target_length") or model.target_length, cache_of(options)
    if length is None and cache is None:
        return stateful_likelihood(generator(model), text)
    return sequential_likelihood(model, text, length or SEQUENTIAL_STEPS, cache)


@torch.no_grad()
def sequential_likelihood(
    model: Generator, text: TokenArray, steps: int, cache: NeuralCache | None = None
) -> TextLikelihood:
    """The likelihood of a text as one sequence, `steps` tokens at a time."""
    nats, count, state, remembered = 0.0, 0, None, None
    parts = ParallelStreams(text, batch_size=1, sequence_length=steps)
    for batch in watched(parts):
        if cache is None:
            loss, tokens, state = _read(model, batch, state)
            nats, count = nats + loss, count + tokens
            continue
        batch = batch.to(device_of(model))
        output = model(batch.tokens, state)
        (hidden,), (targets,), state = output.hidden, batch.targets, output.state
        alone = negative_log_likelihood(model.head.logits(hidden), targets)
        remembered = remembered or CacheState.empty(hidden)
        mixed, remembered = mixed_nats(cache, remembered, hidden, targets, alone)
        nats, count = nats + float(mixed.sum()), count + len(targets)
    return TextLikelihood(nats, count)


@torch.no_grad()
def stateful_likelihood(model: Generator, text: TokenArray) -> TextLikelihood:
    """The likelihood of all tokens of a text but the first, each given all tokens before it.

    model: in evaluation mode.  text: ids, N of them; N - 1 are predicted.
    """
    overlap, most = FIRST_OVERLAP, MOST_SEGMENTS.get(device_of(model).type, ELSEWHERE)
    while (rows := min(most, len(text.ids) // (PER_OVERLAP * overlap))) >= FEWEST_SEGMENTS:
        likelihood, gap = _read_segments(model, text, rows, overlap)
        if gap <= TOLERANCE:
            return likelihood
        overlap *= 2
    return sequential_likelihood(model, text, SEQUENTIAL_STEPS)


def _read(model: Generator, batch: StreamBatch, state: State | None) -> tuple[float, int, State]:
    """Loss in nats and number of the predicted tokens of a batch, and the state after it."""
    batch = batch.to(device_of(model))
    output = model(batch.tokens, state)
    if output.state is None:
        raise ConfigError(
            f"{type(model).__name__} carries no state from one part of a text to the next: give "
            "`window`, the tokens that it reads at a time."
        )
    loss, tokens = model.head.loss(output.hidden.flatten(0, 1), batch.targets.flatten())
    return float(loss), tokens, output.state


def _read_segments(
    model: Generator, text: TokenArray, rows: int, overlap: int
) -> tuple[TextLikelihood, float]:
    """The likelihood read in segments, and the largest difference between the last state of a
    segment and the state with which the next one began.
    """
    streams = WarmedStreams(text, batch_size=rows, sequence_length=SEGMENT_STEPS, warmup=overlap)
    nats, count, state, began = 0.0, 0, None, None
    before = torch.arange(rows - 1, device=device_of(model))
    for number, batch in enumerate(watched(streams), 1):
        loss, tokens, state = _read(model, batch, state)
        nats, count = nats + loss, count + tokens
        if number == streams.leading:
            began = state.select(before + 1)
    assert began is not None and state is not None
    likelihood = TextLikelihood(nats, count, rows, overlap)
    return likelihood, difference(state.select(before), began)


def difference(first: State, second: State) -> float:
    """The largest difference of two states; of numbers beyond 1, relative to them."""
    largest, second_tensors = 0.0, second.tensors()
    for name, x in first.tensors().items():
        y = second_tensors[name]
        if x.shape != y.shape or not x.is_floating_point():
            largest = largest if torch.equal(x, y) else math.inf
        elif x.numel():
            x, y = x.float(), y.float()
            gap = float(((x - y).abs() / y.abs().clamp(min=1)).max())
            largest = max(largest, math.inf if math.isnan(gap) else gap)
    return largest
