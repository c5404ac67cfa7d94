"""What every method of decoding does with a model: start, and ask for the next log-probabilities.

This is all that decoding knows of a model; `regard.models.protocols` writes it down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isnan
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding import cuda_graphs as cuda_graphs  # which registers a generator
from regard.decoding.start import start
from regard.errors import RegardError
from regard.models.protocols import Generator

AnyState = TypeVar("AnyState")  # a `State`, or one that a draft model keeps several of


class HasModes(Protocol):
    """A model, or a generator around one: it is in training, or is used."""

    training: bool

    def train(self, mode: bool = True) -> Any: ...

    def eval(self) -> Any: ...


class NotNumbers(RegardError):
    """A model's scores for what comes next are infinite or NaN."""


def start_decoding(model: Generator, source: Sequences | None) -> tuple[Any, Tensor]:
    """The model's state and what has been read: (R, T) tokens, the last to be fed next.

    Prompts of different lengths stand to the right, with -1 on their left.
    """
    state, tokens = start(model, source)
    if source is None or not model.continues or source.ids.size(1) < 2:
        return state, tokens
    width = source.ids.size(1)
    shift = torch.arange(width, device=source.ids.device) - (width - source.lengths[:, None])
    prompts = source.ids.gather(1, shift.clamp(min=0)).masked_fill(shift < 0, -1)
    return state, torch.cat([prompts[:, :-1], tokens], 1)


def ends_of(eos: tuple[int, ...] | None, model: Generator) -> tuple[int, ...]:
    """The tokens that end a sequence: those given, or the model's own where none are."""
    own = model.config.eos if eos is None else eos
    if own is None:
        return ()
    return (own,) if isinstance(own, int) else tuple(own)


def log_probs_after(
    model: Generator, fed: Tensor, state: AnyState, tokens: Tensor
) -> tuple[Tensor, AnyState]:
    """Log-probabilities (R, N, V), at least float32, of what follows each of the tokens `fed`
    (R, N), in one step; tokens (R, T) are all that is written.

    Raises:
        NotNumbers: the model's scores are infinite or NaN.
    """
    after: AnyState
    scores, after = model.step(fed, state)
    log_probs = normalized(scores)
    # One NaN makes a whole distribution NaN.
    check(log_probs[..., 0].sum(1).tolist(), tokens.size(1))
    return log_probs, after


def normalized(scores: Tensor) -> Tensor:
    """Log-probabilities (..., V), at least float32."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)


def check(log_probs: Sequence[float], read: int) -> None:
    """Check that no log-probability is NaN after `read` tokens.

    Raises:
        NotNumbers: one is.
    """
    for row, log_prob in enumerate(log_probs):
        if isnan(log_prob):
            raise NotNumbers(
                f"The model's scores must be numbers, but those of row {row} are NaN or infinite "
                f"after {read} tokens. Its weights may have diverged."
            )


@contextmanager
def evaluating(model: HasModes) -> Iterator[None]:
    """Dropout is off while decoding; the mode comes back afterwards."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()
