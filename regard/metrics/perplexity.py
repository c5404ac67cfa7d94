"""Perplexity and bits per character, with the protocol without which they cannot be compared.

The same model and text give other numbers per word than per subword, and better ones the more
context each prediction sees. So the number carries its unit, its context and its tokenization.

Distances between distributions are in nats; `bits=True` gives bits. They take probabilities over
the last dimension (..., V), tensors or anything that becomes one, and give float64 tensors (...,).
By continuity, 0 log 0 = 0, which is what `torch.xlogy` gives.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError, RegardError, check_choice

# unit -> what is reported: exp(nats per unit), or bits per unit
UNITS = {
    "word": "perplexity",
    "token": "perplexity",
    "character": "bits per character",
    "byte": "bits per byte",
}


@dataclass(frozen=True)
class Protocol:
    """How a likelihood is measured.

    unit: what the sum is divided by, a key of `UNITS`. Words, characters and bytes are those of
    the original text, whatever the model's tokens are.
    tokenization: what the model's tokens are, for instance "words" or "bpe-8000".
    window: tokens read at a time; None: the whole text, its state carried from part to part.
    stride: tokens by which the window moves, which are those that it predicts; None: the window's
    own length, so that the first token of a window has no context.
    segments, overlap: without a window, parts of the text that were read side by side, and how
    many tokens before its own each part began to read.
    state: without a window, further facts about how the state was carried, each behind "|".
    direction: in which the text is predicted, where a model reads in both: forward, backward.
    """

    unit: str
    tokenization: str
    window: int | None = None
    stride: int | None = None
    segments: int = 1
    overlap: int = 0
    state: str = ""
    direction: str = ""

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, UNITS)
        if self.stride is not None and not 1 <= self.stride <= (self.window or 0):
            raise ConfigError(f"`stride` must be at most `window`, {self.window}: {self.stride}.")

    @property
    def step(self) -> int | None:
        """Tokens that each window predicts; None where there is no window."""
        return self.window if self.stride is None else self.stride

    @property
    def signature(self) -> str:
        """The protocol in one line, such as ``unit:word|tok:bpe-8000|window:512|stride:256``."""
        context = "window:carried"
        if self.window is not None:
            context = f"window:{self.window}|stride:{self.step}"
        elif self.segments > 1:
            context += f"|segments:{self.segments}|overlap:{self.overlap}"
        context += self.state + (f"|direction:{self.direction}" if self.direction else "")
        return f"unit:{self.unit}|tok:{self.tokenization}|{context}"


@dataclass(frozen=True)
class Perplexity:
    """nats: minus the sum of natural log-probabilities.  count: units in the text.

    unknown: tokens that stand for words outside the vocabulary; to predict that a word is unknown
    is easier than to predict the word, so closed vocabularies look better than they are.
    """

    nats: float
    count: int
    protocol: Protocol
    unknown: int = 0

    @property
    def name(self) -> str:
        """What the number is."""
        return f"{self.protocol.direction} {self._quantity}".lstrip()

    @property
    def _quantity(self) -> str:
        return UNITS[self.protocol.unit]

    @property
    def value(self) -> float:
        """exp(nats / count), or for characters and bytes nats / count / ln 2."""
        mean = self.nats / self.count
        if self._quantity != "perplexity":
            return mean / math.log(2)
        return math.inf if mean > 709 else math.exp(mean)  # NaN stays NaN

    @property
    def signature(self) -> str:
        """The protocol, how many units were counted, and how many tokens were unknown words."""
        unknown = f"|unk:{self.unknown}" if self.unknown else ""
        return f"{self.protocol.signature}|count:{self.count}{unknown}"

    def __str__(self) -> str:
        digits = 2 if self._quantity == "perplexity" else 4
        return f"{self.name} = {self.value:.{digits}f} {self.signature}"


# ------------------------------------------------------------------------------------ distributions


def entropy(p: Any, *, bits: bool = False) -> Tensor:
    """H(p) = - sum p log p"""
    p = _distribution(p, "p")
    return _unit(-torch.xlogy(p, p).sum(-1), bits)


def cross_entropy(p: Any, q: Any, *, bits: bool = False) -> Tensor:
    """H(p, q) = - sum p log q. Infinite where q is 0 and p is not."""
    p, q = _pair(p, q)
    return _unit(-torch.xlogy(p, q).sum(-1), bits)


def kl_divergence(p: Any, q: Any, *, bits: bool = False) -> Tensor:
    """KL(p || q) = sum p log(p / q) >= 0. Infinite where q is 0 and p is not."""
    p, q = _pair(p, q)
    # As one logarithm of the ratio: the difference of two sums would lose digits where p = q.
    ratio = torch.where(p > 0, p / q, torch.ones_like(p))
    return _unit(torch.xlogy(p, ratio).sum(-1), bits)


def jensen_shannon(p: Any, q: Any, *, bits: bool = False) -> Tensor:
    """JS(p, q) = KL(p || m) / 2 + KL(q || m) / 2 with m = (p + q) / 2; at most log 2.

    The divergence, not its square root, which is the distance.
    """
    p, q = _pair(p, q)
    middle = (p + q) / 2
    return (kl_divergence(p, middle, bits=bits) + kl_divergence(q, middle, bits=bits)) / 2


def _unit(nats: Tensor, bits: bool) -> Tensor:
    return nats / math.log(2) if bits else nats


def _pair(p: Any, q: Any) -> tuple[Tensor, Tensor]:
    return torch.broadcast_tensors(_distribution(p, "p"), _distribution(q, "q"))


def _distribution(values: Any, name: str) -> Tensor:
    p = torch.as_tensor(values).double()
    # The sum has the rounding of half precision.
    if not bool((p >= 0).all()) or bool(((p.sum(-1) - 1).abs() > 1e-3).any()):
        raise RegardError(f"`{name}` must be probabilities that sum to 1, but is {values!r:.80}.")
    return p
