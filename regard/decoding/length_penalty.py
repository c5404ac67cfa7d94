"""Penalties on the length of a hypothesis, and limits on the number of tokens.

The length n of a hypothesis is the number of tokens that were generated, `eos` included.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding.option_types import check
from regard.errors import ConfigError
from regard.models.protocols import Generator


@dataclass(frozen=True)
class Power:
    """n^alpha, as in transformers, Marian and fairseq.

    With alpha 0 the score is log P(y), with 1 the mean log-probability of a token.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        check("length_penalty", self.alpha)

    def __call__(self, length: Any) -> Any:
        """The divisor for lengths of n >= 1 tokens (numbers or tensors); monotone in n."""
        return length**self.alpha


@dataclass(frozen=True)
class GNMT:
    """((5 + n) / 6)^alpha                                       (Wu et al. 2016, equation 14)"""

    alpha: float = 0.6

    def __post_init__(self) -> None:
        check("length_penalty", self.alpha)

    def __call__(self, length: Any) -> Any:
        return ((5 + length) / 6) ** self.alpha


LengthPenalty = Power | GNMT  # score = log P(y) / penalty(n)
PENALTIES: dict[str, type[LengthPenalty]] = {"power": Power, "gnmt": GNMT}


@dataclass(frozen=True)
class RelativeLimit:
    """At most ratio * S + plus generated tokens for a source of S tokens.

    Raises:
        ConfigError: `ratio` is below 0, or `plus` below 1.
    """

    ratio: float = 2.0
    plus: int = 10

    def __post_init__(self) -> None:
        check("max_length_a", self.ratio)
        check("max_length_b", self.plus)

    def of(self, source: Sequences) -> Tensor:
        """The limits of the targets of these sources, (B,)."""
        return (source.lengths * self.ratio).long() + self.plus


@dataclass(frozen=True)
class TotalLimit:
    """At most `count` tokens with the prompt, or with the start token of a decoder that has a
    source: `max_length` of other libraries.

    Raises:
        ConfigError: `count` is below 1.
    """

    count: int

    def __post_init__(self) -> None:
        check("max_length", self.count)

    def after(self, read: Tensor) -> Tensor:
        """How many tokens may be generated after prompts of these lengths, (B,).

        read: (B,) lengths.

        Raises:
            ConfigError: a prompt is as long as the limit.
        """
        remaining = self.count - read
        if bool((remaining < 1).any()):
            row = int(remaining.argmin())
            problem = f"has {int(read[row]):,} tokens, which `max_length` {self.count:,} counts"
            raise ConfigError(f"The prompt of row {row} {problem}: give `max_tokens`.")
        return remaining


Limit = int | RelativeLimit | TotalLimit


def limits(
    max_tokens: Limit, model: Generator, source: Sequences | None, batch_size: int
) -> Tensor:
    """How many tokens may be generated for each source or prompt: (B,), on the CPU.

    The model's own `config.max_length` counts the tokens that it reads: the start token or the
    whole prompt, and all generated tokens but the last.

    Args:
        source: sources or, where the model `continues`, prompts; None: one empty prompt.
        batch_size: B, the number of sources or prompts.

    Raises:
        ConfigError: a relative limit without a source, or a prompt as long as the limit.
    """
    read_counts = torch.ones(batch_size, dtype=torch.long)
    if source is not None and model.continues:
        read_counts = source.lengths.cpu().clamp(min=1)
    if isinstance(max_tokens, int):
        allowed = torch.full((batch_size,), max_tokens)
    elif isinstance(max_tokens, TotalLimit):
        allowed = max_tokens.after(read_counts)
    elif source is None:
        raise ConfigError("A limit relative to the source needs a source, but there is none.")
    else:
        allowed = max_tokens.of(source).cpu()
    longest = model.config.max_length
    if longest is None or model.slides:
        return allowed
    if bool((read_counts > longest).any()):
        row = int(read_counts.argmax())
        problem = f"has {int(read_counts[row])} tokens, but this model reads at most {longest}"
        raise ConfigError(f"The prompt of row {row} {problem}. Shorten it.")
    return torch.minimum(allowed, longest + 1 - read_counts)
