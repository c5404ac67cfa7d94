"""When the beam search for a sentence ends: three rules, from the fastest to the exact one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from regard.decoding.length_penalty import LengthPenalty


@dataclass(frozen=True, eq=False)
class SearchStatus:
    """A beam search of A sentences after a step.

    scores: (A, W) of the finished hypotheses, best first, W being the beam size; minus infinity
        where there are fewer.
    running: (A,) log-probability of the best running hypothesis.
    length: tokens generated so far.
    limits: (A,) tokens that may be generated.
    penalty: divides a log-probability to give a score.
    n_best: how many hypotheses of each sentence are returned.
    """

    scores: Tensor
    running: Tensor
    length: int
    limits: Tensor
    penalty: LengthPenalty
    n_best: int


class Stopping(Protocol):
    """A stopping rule."""

    def __call__(self, status: SearchStatus) -> Tensor:
        """(A,) bool, whether the search for this sentence ends."""


@dataclass(frozen=True)
class BeamFinished:
    """As many hypotheses have finished as the beam is wide.

    transformers' `early_stopping=True`, and fairseq's rule. The fastest; a better hypothesis that
    would have finished later is missed.
    """

    def __call__(self, status: SearchStatus) -> Tensor:
        return status.scores[:, -1].isfinite()


@dataclass(frozen=True)
class CurrentLength:
    """As many have finished as the beam is wide, and the best running hypothesis would not enter
    among them if it ended at its current length.

    transformers' `early_stopping=False`, its default. A hypothesis whose mean improves as it grows
    can still be missed.
    """

    def __call__(self, status: SearchStatus) -> Tensor:
        score = status.running / status.penalty(status.length)
        return score <= status.scores[:, -1]


@dataclass(frozen=True)
class ExactBound:
    """No running hypothesis can enter the n best any more, however long it gets.

    log P only falls as a hypothesis grows, and the penalty is monotone, so that the best score in
    reach is log P / penalty(n) at the next length or at the limit. The n best are those that a
    search to the limit would give: transformers' `early_stopping="never"`, but it stops sooner.
    """

    def __call__(self, status: SearchStatus) -> Tensor:
        at_next = torch.as_tensor(status.penalty(float(status.length + 1)))
        at_limit = status.penalty(status.limits.to(status.running.dtype))  # (A,)
        bound = status.running / torch.maximum(at_limit, at_next.to(at_limit))
        return bound <= status.scores[:, status.n_best - 1]


# The values of `early_stopping`, as in transformers.
STOPPING: dict[bool | str, Stopping] = {
    True: BeamFinished(),
    False: CurrentLength(),
    "never": ExactBound(),
}
