"""Sampling: each token is drawn from the model's distribution, after the filters."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from regard import ops
from regard.data.batches import Sequences
from regard.decoding.filters import Filter
from regard.decoding.length_penalty import LengthPenalty, Limit, Power
from regard.decoding.loop import Chooser, EndRule, TokenMethod, choose_filtered
from regard.decoding.option_types import check
from regard.decoding.settings import Settings, check_common, common_settings


@dataclass(frozen=True)
class Sampling(TokenMethod):
    """Sampling and its options: `samples` independent sequences for each source.

    A sample is a function of the model, the source's tokens, `seed` and its own number 0, 1, …: a
    source has the same samples alone and in any batch, in any order.

    Args:
        filters: what may come next; temperature, top-k and top-p are filters.
        samples: sequences for each source.
        seed: of the random numbers.
        length_penalty: normalizes the score that is reported, and nothing else.
        max_tokens: how many tokens may be generated.
        eos: the tokens that end a sequence; None: the model's own.
        ends: further rules that end a sequence.

    Raises:
        ConfigError: an option out of range.
    """

    filters: tuple[Filter, ...] = ()
    samples: int = 1
    seed: int = 0
    length_penalty: LengthPenalty = Power(1.0)
    max_tokens: Limit = 256
    eos: tuple[int, ...] | None = None
    ends: tuple[EndRule, ...] = ()

    def __post_init__(self) -> None:
        check_common(self.max_tokens, self.eos)
        check("num_return_sequences", self.samples, "samples")
        check("seed", self.seed)

    @property
    def copies(self) -> int:
        return self.samples

    def chooser(self, source: Sequences | None, limits: Tensor) -> Chooser:
        return choose_filtered(
            self.filters, Draw(row_seeds(source, self.samples, self.seed), limits)
        )

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        return cls(
            samples=settings.take("num_return_sequences", 1),
            seed=settings.take("seed", 0),
            **settings.common(),
        )

    def settings(self) -> dict[str, Any]:
        common = common_settings(self.filters, self.length_penalty, self.max_tokens, self.eos)
        options = {"do_sample": True, "num_return_sequences": self.samples, "seed": self.seed}
        # Without them other libraries would use values of their own.
        return {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | common | options


def row_seeds(source: Sequences | None, samples: int, seed: int) -> list[int]:
    """A seed for each sample: the first 8 bytes of BLAKE2b over "seed sample-number token …".

    Args:
        source: sources or prompts; None: one empty prompt.
        samples: how many for each source.

    Returns:
        Seeds from 0 to 2^64 - 1; that of sample i of source b has the index b * samples + i.
    """
    texts: list[list[int]] = [[]]
    if source is not None:
        lengths = source.lengths.tolist()
        texts = [ids[:n] for ids, n in zip(source.ids.tolist(), lengths, strict=True)]
    return [
        int.from_bytes(hashlib.blake2b(" ".join(map(str, key)).encode(), digest_size=8).digest())
        for ids in texts
        for key in ([seed, number, *ids] for number in range(samples))
    ]


class Draw:
    """Draws tokens by the inverse of the cumulative distribution.

    Each sequence has its own generator with its own seed; its i-th token takes the i-th uniform
    number, whatever the other sequences do. The numbers are drawn on demand: limits may be huge.

    Args:
        seeds: one for each sequence of the batch.
        limits: how many tokens may be generated for each.
    """

    FIRST = 256  # how many numbers a sequence draws at first; their number doubles from then on

    def __init__(self, seeds: list[int], limits: Tensor):
        self.generators = [torch.Generator().manual_seed(seed % 2**63) for seed in seeds]
        self.limit = int(limits.max()) if seeds else 0
        self.uniform = torch.zeros(len(seeds), 0, dtype=torch.float64)

    def numbers(self, rows: Tensor, count: int | Tensor) -> Tensor:
        """The uniform numbers (B,) float64, in [0, 1), for the next tokens.

        Args:
            rows: (B,) the sequences' indices in the batch.
            count: how many tokens were generated before: one number, or (B,) of each sequence its
                own.
        """
        self._draw(1 + (int(count.max()) if isinstance(count, Tensor) else count))
        self.uniform = self.uniform.to(rows.device)
        return self.uniform[rows, count]

    def _draw(self, needed: int) -> None:
        """Draw numbers of each sequence until there are at least `needed`."""
        drawn = self.uniform.size(1)
        if needed <= drawn or not self.generators:
            return
        more = min(max(needed, 2 * drawn, self.FIRST), max(self.limit, needed)) - drawn
        new = [torch.rand(more, generator=g, dtype=torch.float64) for g in self.generators]
        self.uniform = torch.cat([self.uniform, torch.stack(new).to(self.uniform.device)], 1)

    def __call__(self, scores: Tensor, rows: Tensor, count: int | Tensor) -> Tensor:
        """Tokens (B,) for scores (B, V); rows, count: see `numbers`.

        A sequence for which no token is allowed gets any token.
        """
        probs = scores.softmax(-1).nan_to_num(0.0)  # (B, V); zeros where no token is allowed
        return ops.weighted_index(probs, self.numbers(rows, count))
