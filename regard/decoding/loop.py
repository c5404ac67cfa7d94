"""One hypothesis a row, one token at a time: what greedy search and sampling have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding import cuda_graphs
from regard.decoding.constraints import ForcedEnd
from regard.decoding.filters import NEG_INF, Filter, Prefix, apply
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.length_penalty import LengthPenalty, Limit, limits
from regard.decoding.steps import check, ends_of, evaluating, normalized, start_decoding
from regard.state import State

# scores (R, V), what is written, row numbers (R,) -> tokens (R,) and their log-probabilities (R,),
# which are minus infinity where the filters allow none, and no numbers where the scores are none
Chooser = Callable[[Tensor, "GeneratedTokens", Tensor], tuple[Tensor, Tensor]]
# filtered scores (R, V), row numbers (R,), tokens decided before -> the tokens decided now (R,)
Pick = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Plan:
    """When rows end: at a limit, or with one of the tokens `eos` (None: the model's own).

    forced: at the limit an end is written in any case.
    """

    max_tokens: Limit = 256
    eos: tuple[int, ...] | None = None
    forced: bool = False


@dataclass(frozen=True)
class StepResult:
    """One row's next token. token: None when the filters allowed none. last: the row ends here.
    forced: with an end that the limit forced."""

    row: int
    token: int | None
    log_prob: float  # of the row so far, this token included
    last: bool
    forced: bool = False


@dataclass
class Row:
    """A row that goes on. room: tokens that it may have. log_prob: of those that it has."""

    number: int
    room: int
    log_prob: float = 0.0

    def take(
        self, token: int, log_prob: float, new: int, ends: tuple[int, ...], forced: bool
    ) -> StepResult:
        """The row with its token number `new`, from 1."""
        if log_prob == NEG_INF:
            return StepResult(self.number, None, self.log_prob, True)
        self.log_prob += log_prob
        full = new >= self.room
        last = full or token in ends
        return StepResult(self.number, token, self.log_prob, last, forced and full)


class GeneratedTokens:
    """What the rows have read so far, put together only when somebody asks. new: tokens decided."""

    def __init__(self, tokens: Tensor, eos: tuple[int, ...], limits: Tensor):
        self.new, self.eos, self.limits = 0, eos, limits
        self._parts = [tokens]

    @property
    def prefix(self) -> Prefix:
        """For filters."""
        if len(self._parts) > 1:
            self._parts = [torch.cat(self._parts, 1)]
        return Prefix(self._parts[0], self.new, self.eos, self.limits)

    def add(self, column: Tensor) -> None:
        """One more token of each row: (R, 1)"""
        self.new += 1
        self._parts.append(column)

    def select(self, rows: Tensor) -> None:
        """These go on."""
        self._parts, self.limits = [self.prefix.tokens[rows]], self.limits[rows]


@torch.no_grad()
def decode_steps(
    model: Any,
    source: Sequences | None,
    chooser: Callable[[Tensor], Chooser],
    plan: Plan,
    *,
    copies: int = 1,
    begun: tuple[Any, Tensor] | None = None,
) -> Iterator[list[StepResult]]:
    """Step after step, what was decided for each row that still goes on.

    `chooser` is given the limits (R,) of the rows and returns the function that chooses tokens. The
    rows of sentence b are b * copies … b * copies + copies - 1. Rows that end leave the batch.
    begun: what `start_decoding` gave, where somebody has asked already.
    """
    with evaluating(model):
        state, tokens = begun or start_decoding(model, source)
        numbers = torch.arange(tokens.size(0) * copies, device=tokens.device)
        room = limits(plan.max_tokens, model, source, tokens.size(0)).repeat_interleave(copies)
        choose = chooser(room)
        if copies > 1:
            state, tokens = state.select(numbers // copies), tokens[numbers // copies]
        ends = ends_of(plan.eos, model)
        rows = [Row(number, most) for number, most in enumerate(room.tolist())]
        if rows and isinstance(state, State):
            state = state.expecting(max(row.room for row in rows))
        written, read = GeneratedTokens(tokens, ends, room.to(tokens.device)), tokens.size(1)
        fed = tokens[:, -1:].contiguous()
        while rows:
            scores, state = cuda_graphs.step(model, fed, state)
            token, log_prob = choose(scores[:, -1], written, numbers)
            fed = token[:, None]
            words, found = together(token, log_prob)
            check(found, read + written.new)
            written.add(fed)
            chosen = zip(rows, words, found, strict=True)
            step = [
                row.take(word, gain, written.new, ends, plan.forced) for row, word, gain in chosen
            ]
            yield step
            going = [at for at, decided in enumerate(step) if not decided.last]
            if len(going) < len(rows):
                rows = [rows[at] for at in going]
                keep = torch.tensor(going, dtype=torch.long, device=fed.device)
                numbers, fed = numbers[keep], fed[keep]
                written.select(keep)
                state = state.select(keep) if rows else state


def together(token: Tensor, log_prob: Tensor) -> tuple[list[int], list[float]]:
    """Two columns (R,) as numbers, in one look at the device."""
    words, found = torch.stack([token.double(), log_prob.double()]).tolist()
    return list(map(int, words)), found


def picking(filters: Sequence[Filter], pick: Pick) -> Chooser:
    """Picks among what the filters leave."""

    def choose(scores: Tensor, written: GeneratedTokens, rows: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = normalized(scores)
        allowed = apply(filters, log_probs, written.prefix) if filters else log_probs
        token = pick(allowed, rows, written.new)
        index = token[:, None]
        log_prob = log_probs.gather(1, index)
        impossible = (allowed.gather(1, index) == NEG_INF) & ~log_prob.isnan()
        return token, log_prob.masked_fill(impossible, NEG_INF)[:, 0]

    return choose


def forces_end(filters: Sequence[Filter]) -> bool:
    """Whether an end is forced at the limit."""
    return any(isinstance(part, ForcedEnd) for part in filters)


def decided(
    rows: Tensor, token: Tensor, possible: Tensor, total: Tensor, going: Tensor, forced: Tensor
) -> list[StepResult]:
    """What was decided for R rows, from (R,) columns."""
    columns = map(Tensor.tolist, (rows, token, possible, total, going, forced))
    return [
        StepResult(row, token if possible else None, log_prob, not going, forced)
        for row, token, possible, log_prob, going, forced in zip(*columns, strict=True)
    ]


class Collector:
    """Gathers what the steps decided into hypotheses."""

    def __init__(self, ends: tuple[int, ...], penalty: LengthPenalty, copies: int = 1):
        self.ends, self.penalty, self.copies = ends, penalty, copies
        self._tokens: dict[int, list[int]] = {}
        self._ended: dict[int, Hypothesis] = {}

    def add(self, step: Iterable[StepResult]) -> None:
        """One step."""
        for decided in step:
            tokens = self._tokens.setdefault(decided.row, [])
            if decided.token is not None:
                tokens.append(decided.token)
            if decided.last:
                self._ended[decided.row] = self._end(tokens, decided)

    def _end(self, tokens: list[int], decided: StepResult) -> Hypothesis:
        score = decided.log_prob / self.penalty(max(len(tokens), 1))
        ended = decided.token is not None and decided.token in self.ends
        words = tokens[:-1] if ended else tokens
        return Hypothesis(words, score, decided.log_prob, ended and not decided.forced)

    def results(self) -> list[list[Hypothesis]]:
        """For each sentence its `copies` hypotheses; complete when all steps have been added."""
        rows = [self._ended[row] for row in sorted(self._ended)]
        return [rows[at : at + self.copies] for at in range(0, len(rows), self.copies)]
