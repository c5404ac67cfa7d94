"""Searches in one compiled call, where a model has one and nobody looks between the steps."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from regard.decoding.hypothesis import Hypothesis
from regard.decoding.lengths import LengthPenalty
from regard.decoding.stopping import BeamFinished, CurrentLength, ExactBound, Stopping
from regard.decoding.topk import place_bits
from regard.native.beams import BEAM_FINISHED, CURRENT_LENGTH, EXACT_BOUND, Plan

RULES: dict[type, int] = {
    BeamFinished: BEAM_FINISHED,
    CurrentLength: CURRENT_LENGTH,
    ExactBound: EXACT_BOUND,
}


def search_at_once(
    model: Any,
    begun: tuple[Any, Tensor],
    room: Tensor,
    *,
    size: int,
    n_best: int,
    penalty: LengthPenalty,
    stopping: Stopping,
) -> list[list[Hypothesis]] | None:
    """What a beam search without filters finds, from a state and the first tokens (A, 1) on, with
    `room` (A,) for so many tokens; None where it must go step by step.
    """
    state, tokens = begun
    beams, rule = getattr(model.step, "beams", None), RULES.get(type(stopping))
    if beams is None or rule is None or tokens.size(1) > 1:
        return None
    eos, bits = getattr(model.config, "eos", None), partial(place_bits, count=2 * size)
    found = beams(tokens, state, Plan(size, n_best, eos, rule, room, penalty, bits))
    if found is None:
        return None
    return [[Hypothesis(*parts) for parts in several] for several in found.rows(n_best)]
