"""Searches in one compiled call, where a model has one and nobody looks between the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from regard.decoding.constraints import BadWords, ForcedEnd, Renormalize, Suppress
from regard.decoding.filters import Filter
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.length_penalty import LengthPenalty
from regard.decoding.steps import ends_of
from regard.decoding.stopping import BeamFinished, CurrentLength, ExactBound, Stopping
from regard.decoding.topk import index_bits
from regard.models.protocols import Generator, SearchPlan

# The rules that a compiled search knows, by their names in a plan.
RULES: dict[type, str] = {
    BeamFinished: "beam-finished",
    CurrentLength: "current-length",
    ExactBound: "exact-bound",
}


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search; see `regard.decoding.beam.Beam`."""

    size: int
    n_best: int
    penalty: LengthPenalty
    stopping: Stopping
    eos: tuple[int, ...] | None
    filters: Sequence[Filter]


def search_at_once(
    model: Generator, begun: tuple[Any, Tensor], room: Tensor, options: SearchOptions
) -> list[list[Hypothesis]] | None:
    """What a beam search finds, from a state and the first tokens (A, 1) on, with `room` (A,) for
    so many tokens; None where it must go step by step, as with most filters.
    """
    (state, tokens), rule, filters = begun, RULES.get(type(options.stopping)), options.filters
    if tokens.size(1) > 1 or rule is None:
        return None
    ends = ends_of(options.eos, model)
    never = _forbidden(filters, ends, model.config.vocab_size)
    if never is None:
        return None
    count = looked_at(options.size, ends)
    plan = SearchPlan(
        *(options.size, options.n_best, ends, rule, room, options.penalty),
        bits=partial(index_bits, count=count),
        count=count,
        never=never,
        normalized=any(isinstance(part, Renormalize) and part.on for part in filters),
        forced=any(isinstance(part, ForcedEnd) for part in filters),
    )
    found = model.search(tokens, state, plan)
    if found is None:
        return None
    return [[Hypothesis(*parts) for parts in several] for several in found]


def looked_at(size: int, ends: Sequence[int]) -> int:
    """How many continuations of a sentence are looked at, so that `size` of them go on even if
    every hypothesis ends in all ways."""
    return (1 + max(1, len(ends))) * size


def _forbidden(
    filters: Sequence[Filter], ends: tuple[int, ...], vocabulary: int
) -> tuple[int, ...] | None:
    """The tokens that filters never allow; None where they do something else too.

    The compiled search knows: single tokens that are forbidden, one end that is forced at the
    limit, and log-probabilities that are normalized again behind the other filters.
    """
    never: set[int] = set()
    forced: set[int] = set()
    for at, part in enumerate(filters):
        match part:
            case BadWords() if all(len(ids) == 1 for ids in part.sequences):
                never |= {*part.singles(ends)}
            case Suppress():
                never |= {*part.tokens}
            case ForcedEnd() if len(part.tokens) == 1 and part.tokens[0] in ends:
                forced |= {*part.tokens}
            case Renormalize() if at == len(filters) - 1:
                pass
            case _:
                return None
    known = never | forced
    return None if forced & never or (known and max(known) >= vocabulary) else tuple(sorted(never))
