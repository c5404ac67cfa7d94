"""One hypothesis a row, one token at a time: what greedy search and sampling have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding.filters import NEVER, Filter, Prefix, apply
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.lengths import LengthPenalty, Relative, limits
from regard.decoding.steps import begin, evaluating, next_log_probs

# filtered scores (R, V), row numbers (R,), tokens decided before -> the tokens decided now (R,)
Pick = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Decided:
    """One row's next token. token: None when the filters allowed none. last: the row ends here."""

    row: int
    token: int | None
    log_prob: float  # of the row so far, this token included
    last: bool


@torch.no_grad()
def walk(
    model: Any,
    source: Sequences | None,
    pick: Callable[[Tensor], Pick],
    *,
    filters: Sequence[Filter] = (),
    max_tokens: int | Relative = 256,
    copies: int = 1,
) -> Iterator[list[Decided]]:
    """Step after step, what was decided for each row that still goes on.

    `pick` is given the limits (R,) of the rows and returns the function that picks tokens. The
    rows of sentence b are b * copies … b * copies + copies - 1. Rows that end leave the batch.
    """
    with evaluating(model):
        state, tokens = begin(model, source)
        rows = torch.arange(tokens.size(0) * copies, device=tokens.device)
        room = limits(max_tokens, model, source, tokens.size(0)).repeat_interleave(copies)
        choose, room = pick(room), room.to(tokens.device)
        if copies > 1:
            state, tokens = state.select(rows // copies), tokens[rows // copies]
        total = torch.zeros(rows.size(0), dtype=torch.float64, device=tokens.device)
        eos = getattr(model.config, "eos", None)
        new = 0
        while rows.numel():
            log_probs, state = next_log_probs(model, tokens, state)
            allowed = apply(filters, log_probs, Prefix(tokens, new, eos))
            token = choose(allowed, rows, new)[:, None]  # (R, 1)
            new += 1
            possible = (allowed.gather(1, token) > NEVER)[:, 0]
            total = torch.where(possible, total + log_probs.gather(1, token)[:, 0], total)
            going = possible & (room > new)
            if eos is not None:
                going &= token[:, 0] != eos
            yield decided(rows, token[:, 0], possible, total, going)
            tokens = torch.cat([tokens, token], 1)
            if not bool(going.all()):
                keep = going.nonzero()[:, 0]
                rows, room, total, tokens = rows[keep], room[keep], total[keep], tokens[keep]
                if keep.numel():
                    state = state.select(keep)


def decided(
    rows: Tensor, token: Tensor, possible: Tensor, total: Tensor, going: Tensor
) -> list[Decided]:
    """What was decided for R rows, from (R,) columns."""
    columns = (rows, token, possible, total, going)
    return [
        Decided(row, token if possible else None, log_prob, not going)
        for row, token, possible, log_prob, going in zip(*map(Tensor.tolist, columns), strict=True)
    ]


class Collector:
    """Gathers what a walk decided into hypotheses."""

    def __init__(self, eos: int | None, penalty: LengthPenalty, copies: int = 1):
        self.eos, self.penalty, self.copies = eos, penalty, copies
        self._tokens: dict[int, list[int]] = {}
        self._ended: dict[int, Hypothesis] = {}

    def add(self, step: Iterable[Decided]) -> None:
        """One step of the walk."""
        for decided in step:
            tokens = self._tokens.setdefault(decided.row, [])
            if decided.token is not None:
                tokens.append(decided.token)
            if decided.last:
                self._ended[decided.row] = self._end(tokens, decided)

    def _end(self, tokens: list[int], decided: Decided) -> Hypothesis:
        score = decided.log_prob / self.penalty(max(len(tokens), 1))
        finished = decided.token is not None and decided.token == self.eos
        return Hypothesis(tokens[:-1] if finished else tokens, score, decided.log_prob, finished)

    def results(self) -> list[list[Hypothesis]]:
        """For each sentence its `copies` hypotheses; complete when the walk has ended."""
        rows = [self._ended[row] for row in sorted(self._ended)]
        return [rows[at : at + self.copies] for at in range(0, len(rows), self.copies)]
