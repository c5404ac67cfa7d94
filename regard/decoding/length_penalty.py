"""How length counts: penalties on a score, and limits on the number of tokens.

The length `n` of a hypothesis is the number of tokens that were generated, `eos` included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding.option_types import check, shown
from regard.errors import ConfigError


class LengthPenalty(Protocol):
    """score = log P(y) / penalty(n)"""

    @property
    def alpha(self) -> float: ...

    def __call__(self, length: Any) -> Any:
        """The divisor for lengths of n >= 1 tokens (numbers or tensors); monotone in n."""
        ...


@dataclass(frozen=True)
class Power:
    """n^alpha, as in transformers, Marian and fairseq. alpha 0: none, 1: mean of a token."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        check("length_penalty", self.alpha, "length_penalty")

    def __call__(self, length: Any) -> Any:
        return length**self.alpha


@dataclass(frozen=True)
class GNMT:
    """((5 + n) / 6)^alpha                                       (Wu et al. 2016, equation 14)"""

    alpha: float = 0.6

    def __post_init__(self) -> None:
        check("length_penalty", self.alpha, "length_penalty")

    def __call__(self, length: Any) -> Any:
        return ((5 + length) / 6) ** self.alpha


PENALTIES: dict[str, type[Power] | type[GNMT]] = {"power": Power, "gnmt": GNMT}


@dataclass(frozen=True)
class RelativeLimit:
    """A limit that grows with the source: at most ratio * S + plus tokens for S source tokens."""

    ratio: float = 2.0
    plus: int = 10

    def __post_init__(self) -> None:
        try:
            check("max_new_tokens_per_source_token", self.ratio, "ratio")
            check("max_new_tokens_beside_source", self.plus, "plus")
        except ConfigError as wrong:
            raise ConfigError(
                "A relative limit needs `ratio` of at least 0 and `plus` of at least 1, "
                f"but they are {shown(self.ratio)} and {shown(self.plus)}: {wrong}"
            ) from None

    def of(self, source: Sequences) -> Tensor:
        """(B,) limits."""
        return (source.lengths * self.ratio).long() + self.plus


@dataclass(frozen=True)
class TotalLimit:
    """At most `count` tokens with the prompt, or with the first token of an answer: `max_length`
    of other libraries."""

    count: int

    def __post_init__(self) -> None:
        check("max_length", self.count, "max_length")

    def beside(self, read: Tensor) -> Tensor:
        """(B,) limits beside (B,) tokens that there are.

        Raises:
            ConfigError: a prompt leaves no room.
        """
        room = self.count - read
        if bool((room < 1).any()):
            row = int(room.argmin())
            raise ConfigError(
                f"The prompt of row {row} has {int(read[row]):,} tokens, but the model's "
                f"`max_length` of {self.count:,} counts these too, so there is no room for more. "
                "Say how many are to be generated: max_tokens."
            )
        return room


Limit = int | RelativeLimit | TotalLimit


def check_limit(max_tokens: Limit) -> None:
    """Refuses a fixed limit below one token, and what is no limit."""
    if not isinstance(max_tokens, RelativeLimit | TotalLimit):
        check("max_new_tokens", max_tokens, "max_tokens")


def limits(max_tokens: Limit, model: Any, source: Sequences | None, rows: int) -> Tensor:
    """How many tokens each row may generate: (B,), on the CPU.

    The model's own `config.max_length` counts the tokens it reads: the first token or the whole
    prompt (`model.continues` tells a prompt from a source), and all that is generated but the
    last, which nobody reads.

    Raises:
        ConfigError: a relative limit without a source; a prompt that leaves no room.
    """
    prompted = source is not None and model.continues
    read = source.lengths.cpu().clamp(min=1) if source is not None and prompted else 1
    if isinstance(max_tokens, int):
        allowed = torch.full((rows,), max_tokens)
    elif isinstance(max_tokens, TotalLimit):
        allowed = max_tokens.beside(torch.as_tensor(read).expand(rows))
    elif source is None:
        raise ConfigError("A limit relative to the source needs a source, but there is none.")
    else:
        allowed = max_tokens.of(source).cpu()
    longest = model.config.max_length
    if longest is None:
        return allowed
    room = torch.as_tensor(longest + 1 - read).expand(rows)
    if bool((room < 1).any()):
        row = int(room.argmin())
        raise ConfigError(
            f"The prompt of row {row} has {longest + 1 - int(room[row])} tokens, but this model "
            f"reads at most {longest}. Shorten the prompt."
        )
    return torch.minimum(allowed, room)
