"""Greedy search: the most probable token at every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from regard import ops
from regard.data.batches import Sequences
from regard.decoding.compiled_search import search_at_once
from regard.decoding.constraints import ForcedEnd, Renormalize
from regard.decoding.filters import Filter
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.length_penalty import LengthPenalty, Limit, Power, check_limit, limits
from regard.decoding.loop import (
    Chooser,
    Collector,
    Plan,
    StepResult,
    decode_steps,
    forces_end,
    picking,
)
from regard.decoding.settings import Settings, check_eos, common_settings, refuse_sampling
from regard.decoding.steps import ends_of, evaluating, start_decoding
from regard.decoding.stopping import BeamFinished


@dataclass(frozen=True)
class Greedy:
    """Equals a beam of one, tokens and scores. Of equal tokens the lowest id is taken.

    length_penalty only normalises the score that is reported.  eos: the tokens that end a
    sequence; None: the model's own.
    """

    length_penalty: LengthPenalty = Power(1.0)
    filters: tuple[Filter, ...] = ()
    max_tokens: Limit = 256
    eos: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_limit(self.max_tokens)
        check_eos(self.eos)
        refuse_sampling(self.filters, "greedy search")

    def run(self, model: Any, source: Sequences | None) -> list[list[Hypothesis]]:
        """One hypothesis a sentence."""
        with torch.no_grad(), evaluating(model):
            begun = start_decoding(model, source)
            at_once = self._at_once(model, source, begun)
        if at_once is not None:
            return at_once
        found = self.collector(model)
        for step in self.steps(model, source, begun):
            found.add(step)
        return found.results()

    def _at_once(
        self, model: Any, source: Sequences | None, begun: tuple[Any, Tensor]
    ) -> list[list[Hypothesis]] | None:
        if any(isinstance(part, Renormalize | ForcedEnd) for part in self.filters):
            return None  # these change the scores of a beam, but not what is reported here
        return search_at_once(
            model,
            begun,
            limits(self.max_tokens, model, source, begun[1].size(0)),
            size=1,
            n_best=1,
            penalty=self.length_penalty,
            stopping=BeamFinished(),
            eos=self.eos,
            filters=self.filters,
        )

    def steps(
        self, model: Any, source: Sequences | None, begun: tuple[Any, Tensor] | None = None
    ) -> Iterator[list[StepResult]]:
        """Token by token, as they are decided."""
        plan = Plan(self.max_tokens, self.eos, forces_end(self.filters))
        return decode_steps(model, source, self._chooser, plan, begun=begun)

    def collector(self, model: Any) -> Collector:
        """Turns steps into hypotheses."""
        return Collector(ends_of(self.eos, model), self.length_penalty)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """See `regard.decoding.settings`."""
        return cls(
            settings.length_penalty(), settings.filters(), settings.max_tokens(), settings.eos()
        )

    def settings(self) -> dict[str, Any]:
        """The names of generation_config.json."""
        return common_settings(self) | {"do_sample": False, "num_beams": 1}

    def _chooser(self, limits: Tensor) -> Chooser:
        if self.filters:
            return picking(self.filters, lambda scores, rows, new: scores.argmax(-1))
        return lambda scores, written, rows: ops.argmax(scores)
