"""A whole beam search in one compiled call, where nobody has to be asked between its steps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from regard.kernels.arguments import address, contiguous
from regard.kernels.products import A_THREADS_WORK
from regard.kernels.signatures import BeamsStruct
from regard.models.protocols import SearchPlan, SearchResults

# Rules of stopping, as beams.h numbers them.
RULES = {"beam-finished": 0, "current-length": 1, "exact-bound": 2}


class SearchResult:
    """What was finished of A sentences, best first; nothing is sure behind `counts`.

    counts: (A,).  scores, log_probs: (A, size) float64.  ended: (A, size) whether with an end.
    lengths: (A, size).  tokens: (A, size, most).
    """

    def __init__(self, plan: SearchPlan):
        rows, whole = (plan.limits.numel(), plan.size), torch.int64
        self.counts = torch.empty(rows[0], dtype=whole)
        self.scores, self.log_probs = torch.empty(2, *rows, dtype=torch.float64)
        self.ended, self.lengths = torch.empty(2, *rows, dtype=whole)
        self.tokens = torch.empty(*rows, plan.most, dtype=whole)

    def rows(self, count: int) -> SearchResults:
        """Of each sentence the best `count`, or as many as there are."""
        scores, log_probs, lengths = (
            part[:, :count].tolist() for part in (self.scores, self.log_probs, self.lengths)
        )
        ended, tokens = (self.ended[:, :count] > 0).tolist(), self.tokens[:, :count].tolist()
        return [
            [
                (tokens[row][at][: lengths[row][at]], scores[row][at], log_probs[row][at], end)
                for at, end in enumerate(ended[row][:several])
            ]
            for row, several in enumerate(self.counts.tolist())
        ]

    @property
    def addresses(self) -> tuple[int, ...]:
        """As beams.h has them."""
        rows, size, most = self.tokens.shape
        columns = (
            ("counts", torch.int64, (rows,)),
            *((name, torch.float64, (rows, size)) for name in ("scores", "log_probs")),
            *((name, torch.int64, (rows, size)) for name in ("ended", "lengths")),
            ("tokens", torch.int64, (rows, size, most)),
        )
        return tuple(address(name, vars(self)[name], kind, shape) for name, kind, shape in columns)


def search(
    plan: SearchPlan, vocabulary: int, work: int, call: Callable[[Any], int]
) -> SearchResult | None:
    """The search, of which `call` makes the compiled call, and gives whether all is found; None
    where it could not be done so. work: multiplications of a row in a step.
    """
    if not plan.limits.numel() or plan.most < 1 or plan.stopping not in RULES:
        return None
    found, most, double = SearchResult(plan), plan.most, torch.float64
    lengths = range(1, most + 2)
    now = torch.tensor([1.0, *(plan.penalty(n) for n in lengths)], dtype=double)
    soon = torch.tensor([1.0, *(plan.penalty(float(n)) for n in lengths)], dtype=double)
    limits, last = contiguous(plan.limits), contiguous(plan.penalty(plan.limits.double()))
    ends, never = (torch.tensor(ids, dtype=torch.int64) for ids in (plan.ends, plan.never))
    rows, penalties = (limits.numel(),), (most + 2,)
    beams = BeamsStruct(
        *(*rows, plan.size, plan.wanted, plan.count, RULES[plan.stopping]),
        *(plan.bits(plan.size, vocabulary), plan.bits(1, vocabulary), most),
        *(ends.numel(), never.numel(), plan.normalized, plan.forced),
        *(address("ends", ends, torch.int64, ends.shape),),
        *(address("never", never, torch.int64, never.shape),),
        *(address("limits", limits, torch.int64, rows), address("now", now, double, penalties)),
        *(address("soon", soon, double, penalties), address("last", last, double, rows)),
        *(work, torch.get_num_threads(), A_THREADS_WORK),
        *found.addresses,
    )
    return found if call(ctypes.byref(beams)) else None
