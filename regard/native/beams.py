"""A whole beam search in one compiled call, where nobody has to be asked between its steps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.native.products import A_THREADS_WORK, pointer

BEAM_FINISHED, CURRENT_LENGTH, EXACT_BOUND = range(3)  # rules of stopping, as beams.h has them


@dataclass(frozen=True, eq=False)
class Plan:
    """What a search of A sentences looks for.

    size: running hypotheses of each.  wanted: finished ones.  ends: tokens that end one.
    stopping: a rule's number.  limits: (A,) how many tokens.  penalty: what a score of so many
    tokens is divided by.  bits: how many hold the place of a continuation, of hypotheses and words.
    count: continuations of a sentence that are looked at.  never: tokens that may not come.
    normalized: the others have the probability 1 together.  forced: at the limit every hypothesis
    gets an end, which counts 0.
    """

    size: int
    wanted: int
    ends: tuple[int, ...]
    stopping: int
    limits: Tensor
    penalty: Callable[[Any], Any]
    bits: Callable[[int, int], int]
    count: int
    never: tuple[int, ...] = ()
    normalized: bool = False
    forced: bool = False

    @property
    def most(self) -> int:
        """Tokens of the longest."""
        return int(self.limits.max())


class _Beams(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("sentences", "size", "wanted", "count", "stopping")),
        *((name, ctypes.c_int64) for name in ("bits", "first_bits", "most")),
        *((name, ctypes.c_int64) for name in ("n_ends", "n_never", "normalized", "forced")),
        *((name, ctypes.c_void_p) for name in ("ends", "never")),
        *((name, ctypes.c_void_p) for name in ("limits", "now", "soon", "last")),
        *((name, ctypes.c_int64) for name in ("work", "threads", "a_threads_work")),
        *((name, ctypes.c_void_p) for name in ("counts", "scores", "log_probs")),
        *((name, ctypes.c_void_p) for name in ("ended", "lengths", "tokens")),
    ]


class Found:
    """What was finished of A sentences, best first; nothing is sure behind `counts`.

    counts: (A,).  scores, log_probs: (A, size) float64.  ended: (A, size) whether with an end.
    lengths: (A, size).  tokens: (A, size, most).
    """

    def __init__(self, plan: Plan):
        rows, whole = (plan.limits.numel(), plan.size), torch.int64
        self.counts = torch.empty(rows[0], dtype=whole)
        self.scores, self.log_probs = torch.empty(2, *rows, dtype=torch.float64)
        self.ended, self.lengths = torch.empty(2, *rows, dtype=whole)
        self.tokens = torch.empty(*rows, plan.most, dtype=whole)

    def rows(self, count: int) -> list[list[tuple[list[int], float, float, bool]]]:
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
    def columns(self) -> tuple[Tensor, ...]:
        """As beams.h has them."""
        ends = self.ended, self.lengths, self.tokens
        return self.counts, self.scores, self.log_probs, *ends


def search(plan: Plan, vocabulary: int, work: int, call: Callable[[Any], int]) -> Found | None:
    """The search, of which `call` makes the compiled call, and gives whether all is found; None
    where it could not be done so. work: multiplications of a row in a step.
    """
    found, most = Found(plan), plan.most
    lengths = range(1, most + 2)
    now = torch.tensor([1.0, *(plan.penalty(n) for n in lengths)], dtype=torch.float64)
    soon = torch.tensor([1.0, *(plan.penalty(float(n)) for n in lengths)], dtype=torch.float64)
    limits, last = plan.limits.contiguous(), plan.penalty(plan.limits.double()).contiguous()
    ends, never = (torch.tensor(ids, dtype=torch.int64) for ids in (plan.ends, plan.never))
    beams = _Beams(
        *(plan.limits.numel(), plan.size, plan.wanted, plan.count, plan.stopping),
        *(plan.bits(plan.size, vocabulary), plan.bits(1, vocabulary), most),
        *(ends.numel(), never.numel(), plan.normalized, plan.forced),
        *map(pointer, (ends, never)),
        *map(pointer, (limits, now, soon, last)),
        *(work, torch.get_num_threads(), A_THREADS_WORK),
        *map(pointer, found.columns),
    )
    return found if call(ctypes.byref(beams)) else None
