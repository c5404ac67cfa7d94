"""How length counts: penalties on a score, and limits on the number of tokens.

The length `n` of a hypothesis is the number of tokens that were generated, `eos` included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.data.batches import Sequences
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

    def __call__(self, length: Any) -> Any:
        return length**self.alpha


@dataclass(frozen=True)
class GNMT:
    """((5 + n) / 6)^alpha                                       (Wu et al. 2016, equation 14)"""

    alpha: float = 0.6

    def __call__(self, length: Any) -> Any:
        return ((5 + length) / 6) ** self.alpha


PENALTIES: dict[str, type[Power] | type[GNMT]] = {"power": Power, "gnmt": GNMT}


@dataclass(frozen=True)
class Relative:
    """A limit that grows with the source: at most ratio * S + plus tokens for S source tokens."""

    ratio: float = 2.0
    plus: int = 10

    def __post_init__(self) -> None:
        if self.ratio < 0 or self.plus < 1:
            raise ConfigError(
                "A relative limit needs `ratio` of at least 0 and `plus` of at least 1, "
                f"but they are {self.ratio} and {self.plus}."
            )

    def of(self, source: Sequences) -> Tensor:
        """(B,) limits."""
        return (source.lengths * self.ratio).long() + self.plus


def check_limit(max_tokens: int | Relative) -> None:
    """Refuses a fixed limit below one token."""
    if isinstance(max_tokens, int) and max_tokens < 1:
        raise ConfigError(f"`max_tokens` must be at least 1, but is {max_tokens}.")


def limits(max_tokens: int | Relative, model: Any, source: Sequences | None, rows: int) -> Tensor:
    """How many tokens each row may generate: (B,), on the CPU.

    The model's own `config.max_length` counts the tokens it reads: the first token or the whole
    prompt (`model.continues` tells a prompt from a source), and all that is generated but the
    last, which nobody reads.

    Raises:
        ConfigError: a relative limit without a source; a prompt that leaves no room.
    """
    if isinstance(max_tokens, int):
        allowed = torch.full((rows,), max_tokens)
    elif source is None:
        raise ConfigError("A limit relative to the source needs a source, but there is none.")
    else:
        allowed = max_tokens.of(source).cpu()
    longest = getattr(model.config, "max_length", None)
    if longest is None:
        return allowed
    prompted = source is not None and getattr(model, "continues", False)
    read = source.lengths.cpu().clamp(min=1) if source is not None and prompted else 1
    room = torch.as_tensor(longest + 1 - read).expand(rows)
    if bool((room < 1).any()):
        row = int(room.argmin())
        raise ConfigError(
            f"The prompt of row {row} has {longest + 1 - int(room[row])} tokens, but this model "
            f"reads at most {longest}. Shorten the prompt."
        )
    return torch.minimum(allowed, room)
