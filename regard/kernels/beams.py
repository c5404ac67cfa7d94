"""A whole beam search in one compiled call, without Python code between its steps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from regard.kernels.arguments import address, contiguous
from regard.kernels.products import WORK_PER_THREAD
from regard.kernels.signatures import BeamsStruct
from regard.models.protocols import SearchPlan, SearchResults

# The stopping rules, as beams.h numbers them.
RULES = {True: 0, False: 1, "never": 2}


class SearchResult:
    """The finished hypotheses of A sentences, best first; those behind `counts` are undefined.

    counts: (A,).  scores, log_probs: (A, size) float64.  ended: (A, size) whether with an end.
    lengths: (A, size).  tokens: (A, size, max_tokens).
    """

    def __init__(self, plan: SearchPlan):
        rows, integer = (plan.limits.numel(), plan.size), torch.int64
        self.counts = torch.empty(rows[0], dtype=integer)
        self.scores, self.log_probs = torch.empty(2, *rows, dtype=torch.float64)
        self.ended, self.lengths = torch.empty(2, *rows, dtype=integer)
        self.tokens = torch.empty(*rows, plan.longest, dtype=integer)

    def rows(self, count: int) -> SearchResults:
        """The best `count` of each sentence, or fewer if fewer are finished."""
        scores, log_probs, lengths = (
            part[:, :count].tolist() for part in (self.scores, self.log_probs, self.lengths)
        )
        ended, tokens = (self.ended[:, :count] > 0).tolist(), self.tokens[:, :count].tolist()
        return [
            [
                (tokens[row][at][: lengths[row][at]], scores[row][at], log_probs[row][at], end)
                for at, end in enumerate(ended[row][:finished])
            ]
            for row, finished in enumerate(self.counts.tolist())
        ]

    @property
    def addresses(self) -> tuple[int, ...]:
        """As beams.h has them."""
        rows, size, max_tokens = self.tokens.shape
        columns = (
            ("counts", torch.int64, (rows,)),
            *((name, torch.float64, (rows, size)) for name in ("scores", "log_probs")),
            *((name, torch.int64, (rows, size)) for name in ("ended", "lengths")),
            ("tokens", torch.int64, (rows, size, max_tokens)),
        )
        return tuple(address(name, vars(self)[name], kind, shape) for name, kind, shape in columns)


def search(
    plan: SearchPlan, vocab_size: int, work: int, call: Callable[[Any], int]
) -> SearchResult | None:
    """The search, or None where it cannot be done in one call.

    work: multiplications of a row in a step.  call: makes the compiled call with the address of the
    options; returns whether the search was completed.
    """
    if not plan.limits.numel() or plan.longest < 1 or plan.early_stopping not in RULES:
        return None
    result, max_tokens, double = SearchResult(plan), plan.longest, torch.float64
    lengths = range(1, max_tokens + 2)
    penalties = torch.tensor([1.0, *(plan.penalty(n) for n in lengths)], dtype=double)
    bounds = torch.tensor([1.0, *(plan.penalty(float(n)) for n in lengths)], dtype=double)
    limits = contiguous(plan.limits)
    limit_penalties = contiguous(plan.penalty(plan.limits.double()))
    eos, forbidden = (torch.tensor(ids, dtype=torch.int64) for ids in (plan.eos, plan.forbidden))
    rows, shape = (limits.numel(),), (max_tokens + 2,)
    beams = BeamsStruct(
        *(*rows, plan.size, plan.n_best, plan.count, RULES[plan.early_stopping]),
        *(plan.bits(plan.size, vocab_size), plan.bits(1, vocab_size), max_tokens),
        *(eos.numel(), forbidden.numel(), plan.normalized, plan.forced),
        *(address("eos", eos, torch.int64, eos.shape),),
        *(address("forbidden", forbidden, torch.int64, forbidden.shape),),
        address("limits", limits, torch.int64, rows),
        address("penalties", penalties, double, shape),
        address("bounds", bounds, double, shape),
        address("limit_penalties", limit_penalties, double, rows),
        *(work, torch.get_num_threads(), WORK_PER_THREAD),
        *result.addresses,
    )
    return result if call(ctypes.byref(beams)) else None
