"""Speculative decoding: a draft guesses some tokens, the model reads them all in one step.

    Speculative(Sampling((TopK(40),)), NGrams(), 4)

Reading a few tokens takes a model little longer than reading one, since the time goes into its
weights. What it agrees with stands, the first that it does not agree with is replaced, and the rest
is forgotten: so each step gives one token at least (Leviathan et al. 2023, Chen et al. 2023).

The text is the one that would be written without a draft: greedy search gives the same tokens, and
samples have the same distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from regard import ops
from regard.data.batches import Sequences
from regard.decoding import cuda_graphs
from regard.decoding.filters import NEG_INF, Filter, Prefix, apply
from regard.decoding.greedy import Greedy
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.length_penalty import Limit, limits
from regard.decoding.loop import Collector, StepResult, decided, forces_end
from regard.decoding.option_types import check as check_value
from regard.decoding.sampling import Draw, Sampling, row_seeds
from regard.decoding.settings import SAMPLED, Settings
from regard.decoding.speculative.drafts import (
    Draft,
    Guess,
    NGrams,
    Proposal,
    Rows,
    check_rewinds,
    draft_of,
)
from regard.decoding.steps import check, ends_of, evaluating, normalized, start_decoding
from regard.errors import ConfigError
from regard.state import State


@dataclass(frozen=True)
class Speculative:
    """Greedy search or sampling, with a draft of `tokens` tokens before each step of the model.

    A sample is a function of the model, the draft, the source's tokens, seed and number alone; with
    `NGrams` it is the very sample that is drawn without a draft.

    Raises:
        ConfigError: the method searches among several, as a beam does.
    """

    method: Greedy | Sampling = Greedy()
    draft: Draft = NGrams()
    tokens: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.method, Greedy | Sampling):
            raise ConfigError(
                "A draft makes greedy search and sampling faster, but the method is "
                f"{type(self.method).__name__}. Leave the draft out, or decode greedily."
            )
        check_value("num_assistant_tokens", self.tokens, "draft_tokens")

    @property
    def max_tokens(self) -> Limit:
        """That of the method."""
        return self.method.max_tokens

    def run(self, model: Any, source: Sequences | None) -> list[list[Hypothesis]]:
        """What the method would give, in another time."""
        found = self.collector(model)
        for step in self.steps(model, source):
            found.add(step)
        return found.results()

    def steps(self, model: Any, source: Sequences | None) -> Iterator[list[StepResult]]:
        """Token by token; those of one step of the model come together."""
        method = self.method

        def rule(room: Tensor) -> Rule:
            if isinstance(method, Greedy):
                return Agree()
            return Correct(row_seeds(source, method.samples, method.seed), room)

        return speculate(model, source, self, rule)

    def collector(self, model: Any) -> Collector:
        """Turns steps into hypotheses."""
        return self.method.collector(model)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """See `regard.decoding.settings`."""
        draft = draft_of(settings.take("draft", "ngram"))
        tokens = settings.take("num_assistant_tokens", cls.tokens)
        sampled = settings.take("do_sample", settings.has(*SAMPLED))
        return cls((Sampling if sampled else Greedy).from_settings(settings), draft, tokens)

    def settings(self) -> dict[str, Any]:
        """The names of generation_config.json; `draft` is our own, and what `save` stores of it."""
        own = {"draft": self.draft, "num_assistant_tokens": self.tokens}
        return self.method.settings() | own


Chosen = tuple[Tensor, Tensor]  # tokens (R,) and their log-probabilities (R,)


# ------------------------------------------------------------------------------ the rules


class Rule(Protocol):
    """How a model and a draft choose, for R rows whose next token is number `at` (R,)."""

    def guess(self, allowed: Tensor, numbers: Tensor, at: Tensor) -> tuple[Tensor, Tensor | None]:
        """The draft's tokens (R,) for scores (R, V), and what they were drawn from."""
        ...

    def decide(
        self, allowed: Tensor, numbers: Tensor, at: Tensor, token: Tensor, probs: Tensor | None
    ) -> Tensor:
        """Tokens (R,) for the model's scores (R, V), given the draft's tokens (R,); -1: none."""
        ...


class Agree:
    """Greedy: the draft's token stands where it is the model's own."""

    def guess(self, allowed: Tensor, numbers: Tensor, at: Tensor) -> tuple[Tensor, Tensor | None]:
        return allowed.argmax(-1), None

    def decide(
        self, allowed: Tensor, numbers: Tensor, at: Tensor, token: Tensor, probs: Tensor | None
    ) -> Tensor:
        return allowed.argmax(-1)


class Correct:
    """Sampling: a token x that the draft drew from q stands with probability min(1, p(x) / q(x)),
    else another is drawn from max(0, p - q), normalized (Leviathan et al. 2023, section 2.3).

    Where the draft drew nothing, all of q is at x. Then the model's token is drawn from p as it is
    without a draft, and x stands where it is the same: the rule in other words.

    The i-th token of a row has its own three uniform numbers, so that neither the other rows nor
    the guesses that were forgotten change what is drawn.
    """

    def __init__(self, seeds: list[int], room: Tensor):
        self.draw, self.drafted, self.accept = (
            Draw([seed + lane for seed in seeds], room) for lane in range(3)
        )

    def guess(self, allowed: Tensor, numbers: Tensor, at: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.drafted(allowed, numbers, at), allowed.softmax(-1).nan_to_num(0.0)

    def decide(
        self, allowed: Tensor, numbers: Tensor, at: Tensor, token: Tensor, probs: Tensor | None
    ) -> Tensor:
        if probs is None:
            return self.draw(allowed, numbers, at)
        p, given = allowed.softmax(-1).nan_to_num(0.0).double(), token >= 0
        q = probs.double() * given[:, None]
        index = token.clamp(min=0)[:, None]
        p_x, q_x = p.gather(1, index)[:, 0], q.gather(1, index)[:, 0]
        chance = self.accept.numbers(numbers, at)
        stands = (q_x > 0) & (chance * q_x < p_x)
        rest = (p - q).clamp(min=0)
        rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)  # p = q, up to rounding
        return torch.where(stands, token, self.draw(rest.log(), numbers, at))


# ------------------------------------------------------------------------------- the walk


@torch.no_grad()
def speculate(
    model: Any, source: Sequences | None, plan: Speculative, rule: Callable[[Tensor], Rule]
) -> Iterator[list[StepResult]]:
    """Step after step of the model, what was decided for each row that still goes on."""
    with evaluating(model):
        state, tokens = start_decoding(model, source)
        check_rewinds(model, state)
        copies = getattr(plan.method, "samples", 1)
        room = limits(plan.max_tokens, model, source, tokens.size(0)).repeat_interleave(copies)
        decide, filters = rule(room), plan.method.filters
        rows = _rows(tokens, room, copies)
        if copies > 1:
            state = state.select(rows.numbers // copies)
        ends = ends_of(plan.method.eos, model)
        draft = plan.draft.start_drafting(model, source, rows, _guess(decide, filters, ends))
        while rows.numbers.numel():
            most = (rows.room - rows.new - 1).clamp(max=plan.tokens)
            proposal = draft.propose(rows, most)
            scores, state, unread = _read(model, state, rows, proposal)
            step = _Step(rows, decide, filters, ends)
            step.judge(scores, proposal)
            yield step.decided
            rows, going = step.after(), step.going
            state = _forgotten(state, unread - step.counts)
            if not bool(going.all()):
                keep = going.nonzero()[:, 0]
                rows = rows.select(keep)
                if keep.numel():
                    state = state.select(keep)
                    draft.select(keep)


def _rows(tokens: Tensor, room: Tensor, copies: int) -> Rows:
    numbers = torch.arange(tokens.size(0) * copies, device=tokens.device)
    tokens = tokens[numbers // copies]
    total = torch.zeros(numbers.size(0), dtype=torch.float64, device=tokens.device)
    begun = (tokens >= 0).sum(1)
    return Rows(numbers, begun, torch.zeros_like(begun), room.to(tokens.device), total, tokens)


def _guess(rule: Rule, filters: Sequence[Filter], ends: tuple[int, ...]) -> Guess:
    """The draft chooses by the rule that the model does, and after the same filters."""

    def guess(log_probs: Tensor, rows: Rows, drafted: Tensor) -> tuple[Tensor, Tensor | None]:
        allowed = _filtered(filters, log_probs, rows, drafted, ends)
        return rule.guess(allowed, rows.numbers, _at(rows, drafted.size(1)))

    return guess


def _read(model: Any, state: State, rows: Rows, proposal: Proposal) -> tuple[Tensor, State, Tensor]:
    """Scores (R, K + 1, V) of what follows each row and each of its K guesses.

    Also the state, and (R,) how many of the tokens that it has read were not read before. Where
    rows are short of room, a neighbour's guesses would reach beyond the model's positions: those
    rows go back and read some tokens once more.
    """
    both = torch.cat([rows.tokens, proposal.tokens], 1)
    width, longest = proposal.tokens.size(1) + 1, model.config.max_length
    unread = torch.full_like(rows.new, width)
    if longest is None or bool((rows.lengths - 1 + width <= longest).all()):
        fed = both[:, both.size(1) - width :]
        return *cuda_graphs.step(model, fed, state), unread
    back = (rows.lengths - 1 + width - longest).clamp(min=0)
    place = torch.arange(width, device=both.device)
    fed = both.gather(1, both.size(1) - width - back[:, None] + place)
    scores, state = cuda_graphs.step(model, fed, state.rewind(back))
    behind = (back[:, None] + place).clamp(max=width - 1)
    return scores.take_along_dim(behind[..., None], 1), state, unread - back


def _forgotten(state: State, counts: Tensor) -> State:
    return state.rewind(counts) if bool(counts.any()) else state


def _filtered(
    filters: Sequence[Filter],
    scores: Tensor,
    rows: Rows,
    drafted: Tensor,
    ends: tuple[int, ...],
) -> Tensor:
    """Scores (R, V) of what follows the rows and (R, J) guesses, after all filters."""
    if not filters:
        return scores
    tokens, allowed = torch.cat([rows.tokens, drafted], 1), torch.empty_like(scores)
    for new in rows.new.unique().tolist():
        alike = rows.new == new
        prefix = Prefix(tokens[alike], new + drafted.size(1), ends, rows.room[alike])
        allowed[alike] = apply(filters, scores[alike], prefix)
    return allowed


def _at(rows: Rows, ahead: int) -> Tensor:
    """(R,) the number of each row's token that is chosen; a row that has ended chooses idly."""
    return torch.minimum(rows.new + ahead, rows.room - 1)


class _Step:
    """What one step of the model decides: at each place, for the rows whose guesses all stand."""

    def __init__(self, rows: Rows, rule: Rule, filters: Sequence[Filter], ends: tuple[int, ...]):
        self.rows, self.rule, self.filters, self.ends = rows, rule, filters, ends
        self.forced = forces_end(filters)
        self.going = torch.ones_like(rows.new, dtype=torch.bool)
        self.counts, self.total = torch.zeros_like(rows.new), rows.total
        self.places: list[tuple[Tensor, ...]] = []  # of each: columns (R,), and which rows count

    def judge(self, scores: Tensor, proposal: Proposal) -> None:
        """Place after place, as long as a row's guesses stand."""
        alive, standing = self.going, 0
        choose = self._choosing(scores, proposal)
        for place in range(scores.size(1)):
            meant = place < proposal.counts
            guessed = torch.full_like(self.counts, -1)
            if place < proposal.tokens.size(1):
                guessed = proposal.tokens[:, place].masked_fill(~meant, -1)
            token = self._place(place, *choose(place, guessed), alive)
            alive = alive & self.going & (token == guessed)
            if not bool(alive.any()):
                break
            standing += int(alive.sum())
        self.counts = torch.stack([counted for *_, counted in self.places]).sum(0)
        _tell(self.rows.numbers.size(0), int(self.counts.sum()), proposal, standing)

    def _choosing(self, scores: Tensor, proposal: Proposal) -> Callable[[int, Tensor], Chosen]:
        """What is chosen at a place, given the draft's tokens (R,); log-probabilities are minus
        infinity where the filters allow nothing.
        """
        rows, read = self.rows, self.rows.tokens.size(1)
        if isinstance(self.rule, Agree) and not self.filters:
            words, found = (
                part.view(scores.shape[:2]) for part in ops.argmax(scores.flatten(0, 1))
            )
            check(found.sum(1).tolist(), read)
            return lambda place, guessed: (words[:, place], found[:, place])
        log_probs = normalized(scores)
        check(log_probs[..., 0].sum(1).tolist(), read)

        def choose(place: int, guessed: Tensor) -> Chosen:
            here, before, probs = log_probs[:, place], proposal.tokens[:, :place], proposal.probs
            allowed = _filtered(self.filters, here, rows, before, self.ends)
            if probs is not None:
                probs = probs[:, min(place, probs.size(1) - 1)]
            token = self.rule.decide(allowed, rows.numbers, _at(rows, place), guessed, probs)
            index = token[:, None]
            impossible = allowed.gather(1, index) == NEG_INF
            return token, here.gather(1, index).masked_fill(impossible, NEG_INF)[:, 0]

        return choose

    def _place(self, place: int, token: Tensor, log_prob: Tensor, alive: Tensor) -> Tensor:
        rows, possible = self.rows, log_prob > NEG_INF
        self.total = torch.where(alive & possible, self.total + log_prob, self.total)
        full = rows.new + place + 1 >= rows.room
        ends = ~possible | full
        for end in self.ends:
            ends |= token == end
        self.going = self.going & ~(alive & ends)
        columns = (rows.numbers, token, possible, self.total, ~ends, full & self.forced)
        self.places.append((*columns, alive))
        return token

    @property
    def decided(self) -> list[StepResult]:
        """What was decided, place after place."""
        *columns, counted = (torch.stack(column) for column in zip(*self.places, strict=True))
        return decided(*(column[counted] for column in columns))

    def after(self) -> Rows:
        """The rows with what was decided."""
        tokens = torch.stack([token for _, token, *_ in self.places], 1)
        return self.rows.written(tokens, self.counts, self.total)


# ------------------------------------------------------------------------------- the pace


@dataclass
class AcceptanceStats:
    """How far the steps of a model came.

    steps: of the model, one for each row that it read.  tokens: that these decided, ends
    included.  drafted: tokens that a draft guessed.  accepted: those of them that stood.
    """

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    outer: AcceptanceStats | None = field(default=None, repr=False, compare=False)

    COUNTS: ClassVar = ("steps", "tokens", "drafted", "accepted")

    def counts(self) -> dict[str, int]:
        """The four numbers by name."""
        return {name: getattr(self, name) for name in self.COUNTS}

    @property
    def tokens_per_step(self) -> float:
        """1 without a draft; above it, the draft was right."""
        return self.tokens / self.steps if self.steps else 1.0

    def __str__(self) -> str:
        share = self.accepted / self.drafted if self.drafted else 0.0
        return (
            f"{self.tokens_per_step:.2f} tokens per step of the model; "
            f"{self.accepted:,} of {self.drafted:,} guesses of the draft stood ({share:.0%})"
        )


_pace: ContextVar[AcceptanceStats | None] = ContextVar("pace", default=None)


@contextmanager
def count_acceptance() -> Iterator[AcceptanceStats]:
    """Counts what speculative decoding does inside the block.

    with count_acceptance() as pace:
        generate(model, prompts, draft="ngram")
    print(pace)
    """
    pace = AcceptanceStats(outer=_pace.get())
    token = _pace.set(pace)
    try:
        yield pace
    finally:
        _pace.reset(token)


def _tell(steps: int, tokens: int, proposal: Proposal, accepted: int) -> None:
    pace = _pace.get()
    drafted = int(proposal.counts.sum()) if pace is not None else 0
    while pace is not None:
        pace.steps += steps
        pace.tokens += tokens
        pace.drafted += drafted
        pace.accepted += accepted
        pace = pace.outer
