"""Greedy search: the most probable token at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding.compiled_search import SearchOptions, run_compiled_search
from regard.decoding.filters import Filter, ForcedEnd, Renormalize
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.length_penalty import BeamFinished, LengthPenalty, Limit, Power, limits
from regard.decoding.loop import Chooser, EndRule, TokenMethod, choose_filtered
from regard.decoding.settings import Settings, check_common, check_no_sampling, common_settings
from regard.decoding.steps import evaluating, most_probable, start_decoding
from regard.models.protocols import Generator
from regard.state import State


@dataclass(frozen=True)
class Greedy(TokenMethod):
    """Greedy search and its options.

    It gives the tokens and scores of a beam of one. Of equally probable tokens the lowest id wins.

    Args:
        length_penalty: normalizes the score that is reported, and nothing else.
        filters: what may come next.
        max_tokens: how many tokens may be generated.
        eos: the tokens that end a sequence; None: the model's own.
        ends: further rules that end a sequence.

    Raises:
        ConfigError: an option out of range, or a filter that makes sense only for sampling.
    """

    length_penalty: LengthPenalty = Power(1.0)
    filters: tuple[Filter, ...] = ()
    max_tokens: Limit = 256
    eos: tuple[int, ...] | None = None
    ends: tuple[EndRule, ...] = ()

    def __post_init__(self) -> None:
        check_common(self.max_tokens, self.eos)
        check_no_sampling(self.filters, "greedy search")

    def run(self, model: Generator, source: Sequences | None) -> list[list[Hypothesis]]:
        """One hypothesis for each source."""
        with torch.no_grad(), evaluating(model):
            started = start_decoding(model, source)
            compiled = self._compiled(model, source, started)
        if compiled is not None:
            return compiled
        collector = self.collector(model)
        for results in self.steps(model, source, started):
            collector.add(results)
        return collector.results()

    def _compiled(
        self, model: Generator, source: Sequences | None, started: tuple[State, Tensor]
    ) -> list[list[Hypothesis]] | None:
        """The hypotheses as one compiled call finds them; None where it cannot."""
        if any(isinstance(part, Renormalize | ForcedEnd) for part in self.filters):
            return None  # these change the scores of a beam, but not those of greedy search
        if self.ends:
            return None
        limit = limits(self.max_tokens, model, source, started[1].size(0))
        penalty, rule = self.length_penalty, BeamFinished()
        options = SearchOptions(1, 1, penalty, rule, self.eos, self.filters)
        return run_compiled_search(model, started, limit, options)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        return cls(**settings.common())

    def settings(self) -> dict[str, Any]:
        common = common_settings(self.filters, self.length_penalty, self.max_tokens, self.eos)
        return common | {"do_sample": False, "num_beams": 1}

    def chooser(self, source: Sequences | None, limits: Tensor) -> Chooser:
        if self.filters:
            return choose_filtered(self.filters, lambda scores, rows, count: scores.argmax(-1))
        return lambda scores, prefix, rows: most_probable(scores)
