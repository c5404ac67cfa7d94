"""Searches in one compiled call, where the model has one and nothing reads the single steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from regard.decoding.filters import BadWords, Filter, ForcedEnd, Renormalize, Suppress
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.length_penalty import STOPPING, LengthPenalty, Stopping
from regard.decoding.steps import eos_tokens
from regard.decoding.topk import index_bits
from regard.models.protocols import Generator, SearchPlan

# `early_stopping` of a `SearchPlan` by the class of the rule; a user's own rule has none.
EARLY_STOPPING = {type(rule): value for value, rule in STOPPING.items()}


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search; see `regard.decoding.beam.Beam`."""

    size: int
    n_best: int
    penalty: LengthPenalty
    stopping: Stopping
    eos: tuple[int, ...] | None
    filters: Sequence[Filter]


def run_compiled_search(
    model: Generator, started: tuple[Any, Tensor], limits: Tensor, options: SearchOptions
) -> list[list[Hypothesis]] | None:
    """The hypotheses of each source, best first; None where the search must go step by step, as
    with most filters or where the model has no compiled search.

    Args:
        started: the state after the sources, and the first tokens (B, 1).
        limits: (B,) how many tokens may be generated.
    """
    state, tokens = started
    rule, filters = EARLY_STOPPING.get(type(options.stopping)), options.filters
    if tokens.size(1) > 1 or rule is None:
        return None
    eos = eos_tokens(options.eos, model)
    forbidden = _forbidden(filters, eos, model.config.vocab_size)
    if forbidden is None:
        return None
    count = ranked_count(options.size, eos)
    plan = SearchPlan(
        *(options.size, options.n_best, eos, rule, limits, options.penalty),
        bits=partial(index_bits, count=count),
        count=count,
        forbidden=forbidden,
        normalized=any(isinstance(part, Renormalize) and part.on for part in filters),
        forced=any(isinstance(part, ForcedEnd) for part in filters),
    )
    results = model.search(tokens, state, plan)
    if results is None:
        return None
    return [[Hypothesis(*fields) for fields in of_source] for of_source in results]


def ranked_count(size: int, eos: Sequence[int]) -> int:
    """How many continuations of a sentence are ranked at each step: so many that `size` of them go
    on even if every running hypothesis can end with each of the tokens `eos`.
    """
    return (1 + max(1, len(eos))) * size


def _forbidden(
    filters: Sequence[Filter], eos: tuple[int, ...], vocab_size: int
) -> tuple[int, ...] | None:
    """The tokens that filters never allow; None where they do something else too.

    The compiled search knows: single tokens that are forbidden, one end that is forced at the
    limit, and log-probabilities that are normalized again behind the other filters.
    """
    forbidden: set[int] = set()
    forced: set[int] = set()
    for index, part in enumerate(filters):
        match part:
            case BadWords() if all(len(ids) == 1 for ids in part.sequences):
                forbidden |= {*part.singles(eos)}
            case Suppress():
                forbidden |= {*part.tokens}
            case ForcedEnd() if len(part.tokens) == 1 and part.tokens[0] in eos:
                forced |= {*part.tokens}
            case Renormalize() if index == len(filters) - 1:
                pass
            case _:
                return None
    if forced & forbidden or max(forced | forbidden, default=0) >= vocab_size:
        return None
    return tuple(sorted(forbidden))
