"""Sampling: each token is drawn from the model's distribution, after the filters."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding.filters import Filter
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.length_penalty import LengthPenalty, Limit, Power, check_limit
from regard.decoding.loop import (
    Chooser,
    Collector,
    Plan,
    StepResult,
    decode_steps,
    forces_end,
    picking,
)
from regard.decoding.option_types import check
from regard.decoding.settings import Settings, check_eos, common_settings
from regard.decoding.steps import ends_of


@dataclass(frozen=True)
class Sampling:
    """`samples` independent sequences for each source, in the order in which they were drawn.

    A sample is a function of the model, the source's tokens, `seed` and its own number 0, 1, …
    alone: the same sentence gives the same samples alone, in any batch, in any order of rows.
    """

    filters: tuple[Filter, ...] = ()
    samples: int = 1
    seed: int = 0
    length_penalty: LengthPenalty = Power(1.0)
    max_tokens: Limit = 256
    eos: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_limit(self.max_tokens)
        check_eos(self.eos)
        check("num_return_sequences", self.samples, "samples")
        check("seed", self.seed, "seed")

    def run(self, model: Any, source: Sequences | None) -> list[list[Hypothesis]]:
        """`samples` hypotheses a sentence."""
        found = self.collector(model)
        for step in self.steps(model, source):
            found.add(step)
        return found.results()

    def steps(self, model: Any, source: Sequences | None) -> Iterator[list[StepResult]]:
        """Token by token, as they are drawn; row b * samples + i is sample i of sentence b."""

        def drawing(limits: Tensor) -> Chooser:
            seeds = row_seeds(source, self.samples, self.seed)
            return picking(self.filters, Draw(seeds, limits))

        plan = Plan(self.max_tokens, self.eos, forces_end(self.filters))
        return decode_steps(model, source, drawing, plan, copies=self.samples)

    def collector(self, model: Any) -> Collector:
        """Turns steps into hypotheses."""
        return Collector(ends_of(self.eos, model), self.length_penalty, self.samples)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """See `regard.decoding.settings`."""
        return cls(
            filters=settings.filters(),
            samples=settings.take("num_return_sequences", 1),
            seed=settings.take("seed", 0),
            length_penalty=settings.length_penalty(),
            max_tokens=settings.max_tokens(),
            eos=settings.eos(),
        )

    def settings(self) -> dict[str, Any]:
        """The names of generation_config.json."""
        own = {"do_sample": True, "num_return_sequences": self.samples, "seed": self.seed}
        # Without them other libraries would fall back on values of their own.
        neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
        return neutral | common_settings(self) | own


def row_seeds(source: Sequences | None, samples: int, seed: int) -> list[int]:
    """A seed for each row: the first 8 bytes of BLAKE2b over "seed sample-number token token …"."""
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
    """Draws by the inverse of the cumulative distribution.

    Each row has its own generator, seeded by its own seed; its i-th token takes the i-th uniform
    number, whatever the other rows do. They are drawn as they are needed: limits may be huge.
    """

    FIRST = 256  # numbers of a row that are drawn at once, then twice as many

    def __init__(self, seeds: list[int], limits: Tensor):
        self.generators = [torch.Generator().manual_seed(seed % 2**63) for seed in seeds]
        self.most = int(limits.max()) if seeds else 0
        self.uniform = torch.zeros(len(seeds), 0, dtype=torch.float64)

    def numbers(self, rows: Tensor, new: int | Tensor) -> Tensor:
        """The uniform numbers (R,) of the rows' tokens number `new`."""
        self._reach(1 + (int(new.max()) if isinstance(new, Tensor) else new))
        self.uniform = self.uniform.to(rows.device)
        return self.uniform[rows, new]

    def _reach(self, count: int) -> None:
        have = self.uniform.size(1)
        if count <= have or not self.generators:
            return
        more = min(max(count, 2 * have, self.FIRST), max(self.most, count)) - have
        drawn = [torch.rand(more, generator=g, dtype=torch.float64) for g in self.generators]
        self.uniform = torch.cat([self.uniform, torch.stack(drawn).to(self.uniform.device)], 1)

    def __call__(self, scores: Tensor, rows: Tensor, new: int | Tensor) -> Tensor:
        """Tokens (R,) for scores (R, V), the rows' tokens number `new`, or (R,) numbers.

        A row where nothing is allowed gives any token.
        """
        cumulative = scores.softmax(-1).nan_to_num(0.0).cumsum(-1)
        total = cumulative[:, -1:]
        goal = (self.numbers(rows, new)[:, None] * total).to(total.dtype)
        # Rounding must not lift the goal to the total: the first sum above it has a probability.
        goal = torch.minimum(goal, torch.nextafter(total, torch.zeros_like(total)))
        found = torch.searchsorted(cumulative, goal, right=True)[:, 0]
        return found.clamp(max=scores.size(-1) - 1)
