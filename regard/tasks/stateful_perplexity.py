"""The likelihood of a text under a model that carries a state from token to token.

One sequence reads every weight once for each token. The state of most trained models converges: it
does not depend on where reading began more than some hundred tokens ago. The text of such a model
is read in segments side by side, each of which begins `overlap` tokens early; at the end every
segment's state must equal the state with which the next segment began. A model whose state does
not converge is evaluated sequentially. So is one for which it matters how many tokens are read at a
time, such as Transformer-XL, and one with a neural cache: recent words become more probable where
the model was in a similar state (Grave et al. 2017, equations 2 and 3).

    p_cache(w | h_t)  ~  sum over i < t with x_{i+1} = w of exp(theta h_t h_i)
    p(w)  =  (1 - lambda) p_vocab(w) + lambda p_cache(w)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from pydantic import model_validator
from torch import Tensor

from regard.call_options import StateFields, with_fields
from regard.data import ParallelStreams, StreamBatch, TokenArray, WarmedStreams
from regard.errors import ConfigError
from regard.models.protocols import Generator, LanguageModel
from regard.models.wrappers import generator
from regard.ops import KeyMask, attention_weights, negative_log_likelihood
from regard.recipe import Options
from regard.schema import checked
from regard.state import State
from regard.tasks.batching import device_of, watched

SEQUENTIAL_STEPS = 256  # tokens of the single sequence at a time
SEGMENT_STEPS = 64  # tokens of each segment at a time
MOST_SEGMENTS = {"cpu": 32}  # as many as keep a processor busy
ELSEWHERE = 256  # on other devices
FEWEST_SEGMENTS = 4  # fewer do not pay
PER_OVERLAP = 8  # a segment has at least so many tokens for each token of its overlap
FIRST_OVERLAP = 64  # tokens; doubled until the states agree
TOLERANCE = 1e-2  # largest difference of states that count as equal


@dataclass(frozen=True)
class TextLikelihood:
    """nats: minus the log-likelihood of `count` tokens.  segments, overlap: how it was read."""

    nats: float
    count: int
    segments: int = 1
    overlap: int = 0


@dataclass(frozen=True)
class NeuralCache:
    """size: positions that it remembers.  theta: how peaked its distribution is.

    weight: lambda, the share of the cache in the mixture.
    """

    size: int
    theta: float = 0.3
    weight: float = 0.1


@dataclass
class CacheState:
    """The last positions of one text: hidden states (N, D), and the token after each, (N,)."""

    hidden: Tensor
    tokens: Tensor

    @classmethod
    def empty(cls, like: Tensor) -> CacheState:
        """None yet; `like` are hidden states (T, D)."""
        return cls(like[:0], torch.zeros(0, dtype=torch.long, device=like.device))


def mixed_nats(
    cache: NeuralCache, state: CacheState, hidden: Tensor, targets: Tensor, nats: Tensor
) -> tuple[Tensor, CacheState]:
    """-log p of the next positions of a text, (T,), and the state after them.

    Args:
        hidden, targets: (T, D) and (T,), the token after each position.
        nats: -log p_vocab(target), (T,).
    """
    before, count = len(state.tokens), len(targets)
    every = torch.cat([state.hidden, hidden])  # (N + T, D)
    tokens = torch.cat([state.tokens, targets])  # (N + T,)
    positions = torch.arange(before + count, device=hidden.device)
    distance = positions[before:, None] - positions  # (T, N + T)
    seen = (distance > 0) & (distance <= cache.size)
    scores = cache.theta * (hidden @ every.T)
    weights = attention_weights(scores.double(), KeyMask(seen))
    cache_probability = (weights * (tokens == targets[:, None])).sum(-1)  # p_cache(target)
    weight = cache.weight * seen.any(-1).double()  # 0 where there is nothing to remember yet
    # In logarithms: exp(-nats) is 0 for a token that the model holds to be less likely than e^-745.
    mixed = torch.logaddexp(
        torch.log1p(-weight) - nats.double(), torch.log(weight * cache_probability)
    )
    return -mixed, CacheState(every[-cache.size :], tokens[-cache.size :])


class StateOptions(with_fields(Options, StateFields)):  # type: ignore[misc]
    """How a model that carries a state reads a text: options of [evaluation]."""

    @model_validator(mode="after")
    def _has_cache(self) -> Self:
        chosen = {self.neural_cache_theta, self.neural_cache_weight} != {None}
        if self.neural_cache is None and chosen:
            raise ValueError("must be a neural cache with `neural_cache`, its positions")
        return self

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> StateOptions:
        """Options by name.

        Raises:
            ConfigError: there is no such option, or one is out of range.
        """
        options: StateOptions = checked(dict(values), cls, "Perplexity", ConfigError)
        return options

    def chosen(self) -> dict[str, Any]:
        """The options that are not None."""
        return self.model_dump(include={*StateOptions.model_fields}, exclude_none=True)

    @property
    def cache(self) -> NeuralCache | None:
        """The neural cache that evaluation is asked for."""
        if self.neural_cache is None:
            return None
        chosen = {"theta": self.neural_cache_theta, "weight": self.neural_cache_weight}
        options = {name: value for name, value in chosen.items() if value is not None}
        return NeuralCache(self.neural_cache, **options)


def signature(model: LanguageModel, options: StateOptions) -> str:
    """The state options in the signature of a score; "" where nothing is chosen."""
    length = options.target_length or model.target_length
    facts: dict[str, Any] = {"target": length} if length else {}
    if model.target_length:
        config = model.config
        facts |= {"memory": config.memory_length, "max_distance": config.max_distance}
    if (cache := options.cache) is not None:
        facts["neural_cache"] = f"{cache.size},{cache.theta:g},{cache.weight:g}"
    return "".join(f"|{name}:{value}" for name, value in facts.items() if value is not None)


def carried_likelihood(
    model: LanguageModel, text: TokenArray, options: StateOptions
) -> TextLikelihood:
    """The likelihood of a text under a model in evaluation mode, read as the options say."""
    length, cache = options.target_length or model.target_length, options.cache
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
    for number, batch in enumerate(watched(parts)):
        if number:
            _check_state(model, state)
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
    overlap, segment_limit = FIRST_OVERLAP, MOST_SEGMENTS.get(device_of(model).type, ELSEWHERE)
    while (rows := min(segment_limit, len(text.ids) // (PER_OVERLAP * overlap))) >= FEWEST_SEGMENTS:
        likelihood, gap = _read_segments(model, text, rows, overlap)
        if gap <= TOLERANCE:
            return likelihood
        overlap *= 2
    return sequential_likelihood(model, text, SEQUENTIAL_STEPS)


def _check_state(model: Generator, state: State | None) -> State:
    """The state before a further part of a text.

    Raises:
        ConfigError: the model has none, so that the part would be read without those before.
    """
    if state is None:
        raise ConfigError(
            f"{type(model).__name__} carries no state from one part of a text to the next: give "
            "`window`, the tokens that it reads at a time."
        )
    return state


def _read(
    model: Generator, batch: StreamBatch, state: State | None
) -> tuple[float, int, State | None]:
    """Loss in nats and number of the predicted tokens of a batch, and the state after it."""
    batch = batch.to(device_of(model))
    output = model(batch.tokens, state)
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
        state = _check_state(model, state)
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
