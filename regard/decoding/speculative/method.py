"""Speculative decoding: a draft proposes some tokens, the model checks them all in one step.

    Speculative(Sampling((TopK(40),)), NGrams(), 4)

Dimensions: B sequences that have not ended, J drafted tokens of each, V tokens in the vocabulary.

Reading a few tokens takes a model little longer than reading one, since the time goes into moving
its weights. Drafted tokens are accepted up to the first that the model rejects; that one is
replaced, and the rest is dropped: each step gives at least one token (Leviathan et al. 2023, Chen
et al. 2023).

The text is the one that would be generated without a draft: greedy search gives the same tokens,
and samples have the same distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding.filters import NEG_INF, Filter, Prefix, apply
from regard.decoding.greedy import Greedy
from regard.decoding.length_penalty import Limit, limits
from regard.decoding.loop import Collector, IncrementalMethod, StepResult, forces_end
from regard.decoding.option_types import NAMES
from regard.decoding.option_types import check as check_option
from regard.decoding.sampling import Draw, Sampling, row_seeds
from regard.decoding.settings import METHOD_OPTIONS, Settings
from regard.decoding.speculative.drafts import (
    ActiveSequences,
    Draft,
    NGrams,
    Proposal,
    check_rewinds,
    draft_of,
)
from regard.decoding.steps import (
    check_log_probs,
    eos_tokens,
    evaluating,
    most_probable,
    normalized,
    start_decoding,
)
from regard.errors import ConfigError
from regard.models.protocols import Generator
from regard.state import State


@dataclass(frozen=True)
class Speculative(IncrementalMethod):
    """Greedy search or sampling, with a draft of `tokens` tokens before each step of the model.

    A sample is a function of the model, the draft, the source's tokens, the seed and the sample's
    number; with `NGrams` it is the very sample that is drawn without a draft.

    Args:
        method: greedy search or sampling.
        draft: what proposes tokens.
        tokens: how many it proposes at most.

    Raises:
        ConfigError: the method is beam search, or `tokens` is below 1.
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
        if self.method.ends:
            raise ConfigError(
                "A draft follows no rules that end a sequence (`ends`). Leave one of both out."
            )
        check_option("num_assistant_tokens", self.tokens)

    @property
    def max_tokens(self) -> Limit:
        """That of the method."""
        return self.method.max_tokens

    def steps(self, model: Generator, source: Sequences | None) -> Iterator[list[StepResult]]:
        """Token by token; those of one step of the model come together."""
        return speculate(model, source, self)

    def collector(self, model: Generator) -> Collector:
        return self.method.collector(model)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        draft = draft_of(settings.take("draft", "ngram"))
        tokens = settings.take("num_assistant_tokens", cls.tokens)
        has_sampling = settings.has(*(NAMES[name] for name in METHOD_OPTIONS["sampling"]))
        method = Sampling if settings.take("do_sample", has_sampling) else Greedy
        return cls(method.from_settings(settings), draft, tokens)

    def settings(self) -> dict[str, Any]:
        """The options; `save` stores the name of the draft."""
        options = {"draft": self.draft, "num_assistant_tokens": self.tokens}
        return self.method.settings() | options


# ------------------------------------------------------------------------------ acceptance


class SameToken:
    """Greedy search: a drafted token is accepted if it is the most probable one."""

    def draft(self, allowed: Tensor, rows: Tensor, counts: Tensor) -> tuple[Tensor, None]:
        """The draft's tokens (B,); see `RejectionSampling.draft`."""
        return allowed.argmax(-1), None

    def decide(self, allowed: Tensor, *_: Tensor | None) -> Tensor:
        """The tokens (B,) that come next; see `RejectionSampling.decide`."""
        return allowed.argmax(-1)


class RejectionSampling:
    """A token x that the draft drew from q is accepted with probability min(1, p(x) / q(x)), else
    another is drawn from max(0, p - q), normalized (Leviathan et al. 2023, section 2.3).

    A draft that does not draw, as n-grams, proposes x with q(x) = 1. Then a token is drawn from p
    as it is without a draft, and x is accepted if it is that token: with probability p(x), and else
    the token has the distribution max(0, p - q), as the rule says.

    The i-th token of a sequence has its own three uniform numbers (for the model's token, the
    draft's, and whether that is accepted), so that neither the other sequences nor rejected tokens
    change what is drawn.
    """

    def __init__(self, seeds: list[int], limits: Tensor):
        self.draw, self.draft_draw, self.accept = (
            Draw([seed + offset for seed in seeds], limits) for offset in range(3)
        )

    def draft(self, allowed: Tensor, rows: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The draft's tokens (B,), and the distributions (B, V) that they were drawn from.

        Args:
            allowed: (B, V) filtered scores of the draft.
            rows: (B,) the sequences' indices in the batch.
            counts: (B,) tokens that were generated before.
        """
        return self.draft_draw(allowed, rows, counts), allowed.softmax(-1).nan_to_num(0.0)

    def decide(
        self, allowed: Tensor, rows: Tensor, counts: Tensor, drafted: Tensor, probs: Tensor | None
    ) -> Tensor:
        """The tokens (B,) that come next: `drafted`, where the model accepts it.

        Args:
            allowed: (B, V) filtered scores of the model.
            rows, counts: see `draft`.
            drafted: (B,) the draft's tokens; -1: none.
            probs: (B, V) what they were drawn from; None: they were not drawn.
        """
        if probs is None:
            return self.draw(allowed, rows, counts)
        p = allowed.softmax(-1).nan_to_num(0.0).double()  # (B, V)
        q = probs.double() * (drafted >= 0)[:, None]
        index = drafted.clamp(min=0)[:, None]  # (B,) -> (B, 1)
        p_x, q_x = p.gather(1, index)[:, 0], q.gather(1, index)[:, 0]
        uniform = self.accept.numbers(rows, counts)
        accepted = (q_x > 0) & (uniform * q_x < p_x)
        residual = (p - q).clamp(min=0)
        # Where nothing is left, p = q up to rounding.
        residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p)
        return torch.where(accepted, drafted, self.draw(residual.log(), rows, counts))


@dataclass(frozen=True)
class Choices:
    """How the model and the draft choose tokens: by one rule, after the same filters."""

    rule: SameToken | RejectionSampling
    filters: Sequence[Filter]
    eos: tuple[int, ...]

    def draft(
        self, log_probs: Tensor, active: ActiveSequences, drafted: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        allowed = self.allowed(log_probs, active, drafted)
        return self.rule.draft(allowed, active.rows, self.counts(active, drafted.size(1)))

    def allowed(self, scores: Tensor, active: ActiveSequences, drafted: Tensor) -> Tensor:
        """Scores (B, V) of what follows the (B, J) drafted tokens, after all filters."""
        if not self.filters:
            return scores
        tokens, allowed = torch.cat([active.tokens, drafted], 1), torch.empty_like(scores)
        for generated in active.generated.unique().tolist():
            same = active.generated == generated
            count, limits = generated + drafted.size(1), active.limits[same]
            prefix = Prefix(tokens[same], count, self.eos, limits)
            allowed[same] = apply(self.filters, scores[same], prefix)
        return allowed

    @staticmethod
    def counts(active: ActiveSequences, drafted: int) -> Tensor:
        """(B,) how many tokens were generated before the one after `drafted` drafted ones.

        A sequence that has reached its limit gets a number below it: its token is not used.
        """
        return torch.minimum(active.generated + drafted, active.limits - 1)


# -------------------------------------------------------------------------------- the loop


@torch.no_grad()
def speculate(
    model: Generator, source: Sequences | None, plan: Speculative
) -> Iterator[list[StepResult]]:
    """The results of each step of the model for the sequences that have not ended.

    Args:
        source: sources or prompts; None: one empty prompt.
        plan: the method, the draft and how many tokens it proposes.

    Raises:
        ConfigError: the model's state cannot rewind, or the draft does not fit the model.
    """
    method = plan.method
    with evaluating(model):
        state, tokens = start_decoding(model, source)
        check_rewinds(model, state)
        limit = limits(plan.max_tokens, model, source, tokens.size(0))
        limit = limit.repeat_interleave(method.copies)
        rule: SameToken | RejectionSampling = SameToken()
        if isinstance(method, Sampling):
            seeds = row_seeds(source, method.samples, method.seed)
            rule = RejectionSampling(seeds, limit)
        choices = Choices(rule, method.filters, eos_tokens(method.eos, model))
        active = _active(tokens, limit, method.copies)
        if method.copies > 1:
            state = state.select(active.rows // method.copies)
        drafter = plan.draft.start_drafting(model, source, active, choices.draft)
        while active.rows.numel():
            most = (active.limits - active.generated - 1).clamp(max=plan.tokens)  # (B,)
            proposal = drafter.propose(active, most)
            scores, state, read = _read(model, state, active, proposal)
            step = _Step(active, choices)
            step.verify(scores, proposal)
            yield step.results
            active, rejected = step.extended(), read - step.counts
            state = state.rewind(rejected) if bool(rejected.any()) else state
            if not bool(step.unfinished.all()):
                keep = step.unfinished.nonzero()[:, 0]
                active = active.select(keep)
                if keep.numel():
                    state = state.select(keep)
                    drafter.select(keep)


def _active(tokens: Tensor, limits: Tensor, copies: int) -> ActiveSequences:
    """`copies` sequences for each row of the prompts, tokens (sources, T), with limits (B,)."""
    rows = torch.arange(tokens.size(0) * copies, device=tokens.device)
    tokens = tokens[rows // copies]
    log_prob = torch.zeros(rows.size(0), dtype=torch.float64, device=tokens.device)
    prompts, limits = (tokens >= 0).sum(1), limits.to(tokens.device)
    return ActiveSequences(rows, prompts, torch.zeros_like(prompts), limits, log_prob, tokens)


def _read(
    model: Generator, state: State, active: ActiveSequences, proposal: Proposal
) -> tuple[Tensor, State, Tensor]:
    """Feed the last token of each sequence and its drafted tokens to the model.

    All sequences are fed J + 1 tokens. One with fewer positions left before the model's
    `max_length` is rewound and reads some of its tokens once more.

    Returns:
        Scores (B, J + 1, V) of what follows each of them, the next state, and (B,) how many tokens
        it has read beyond the old one.
    """
    tokens = torch.cat([active.tokens, proposal.tokens], 1)
    width, longest = proposal.tokens.size(1) + 1, model.config.max_length
    read_counts = torch.full_like(active.generated, width)
    if longest is None or bool((active.lengths - 1 + width <= longest).all()):
        fed = tokens[:, tokens.size(1) - width :]
        return *model.step(fed, state), read_counts
    back = (active.lengths - 1 + width - longest).clamp(min=0)
    offset = torch.arange(width, device=tokens.device)
    fed = tokens.gather(1, tokens.size(1) - width - back[:, None] + offset)  # (B, J + 1)
    scores, state = model.step(fed, state.rewind(back))
    shifted = (back[:, None] + offset).clamp(max=width - 1)  # (B, J + 1)
    return scores.take_along_dim(shifted[..., None], 1), state, read_counts - back


class _Step:
    """What one step of the model decides: token after token, while drafted tokens are accepted.

    unfinished: (B,) bool, whether the sequence has not ended.
    counts: (B,) how many tokens were decided.
    """

    def __init__(self, active: ActiveSequences, choices: Choices):
        self.active, self.choices = active, choices
        self.forces_end = forces_end(choices.filters)
        self.unfinished = torch.ones_like(active.generated, dtype=torch.bool)
        self.counts, self.log_prob = torch.zeros_like(active.generated), active.log_prob
        # Of each position the fields of `StepResult`, (B,) each, and which of them are used.
        self.decided: list[tuple[Tensor, ...]] = []

    def verify(self, scores: Tensor, proposal: Proposal) -> None:
        """Decide the tokens by the scores (B, J + 1, V) of the model."""
        goes_on, accepted = self.unfinished, 0  # all drafted tokens so far were accepted
        choose = self._chooser(scores, proposal)
        for position in range(scores.size(1)):
            drafted = torch.full_like(self.counts, -1)
            if position < proposal.tokens.size(1):
                proposed = position < proposal.counts
                drafted = proposal.tokens[:, position].masked_fill(~proposed, -1)
            token, log_prob = choose(position, drafted)
            self._add(position, token, log_prob, goes_on)
            goes_on = goes_on & self.unfinished & (token == drafted)
            if not bool(goes_on.any()):
                break
            accepted += int(goes_on.sum())
        self.counts = torch.stack([used for *_, used in self.decided]).sum(0)
        _count(self.active.rows.numel(), int(self.counts.sum()), proposal, accepted)

    def _chooser(
        self, scores: Tensor, proposal: Proposal
    ) -> Callable[[int, Tensor], tuple[Tensor, Tensor]]:
        """The function from a position and its drafted tokens (B,) to the next tokens (B,) and
        their log-probabilities (B,): minus infinity where the filters allow no token.
        """
        active, width, choices = self.active, self.active.tokens.size(1), self.choices
        if isinstance(choices.rule, SameToken) and not choices.filters:
            # (B, J + 1, V) -> (B * (J + 1), V) -> 2 times (B, J + 1)
            best, best_log_probs = (
                part.view(scores.shape[:2]) for part in most_probable(scores.flatten(0, 1))
            )
            check_log_probs(best_log_probs.sum(1).tolist(), width)
            return lambda position, drafted: (best[:, position], best_log_probs[:, position])
        log_probs = normalized(scores)
        check_log_probs(log_probs[..., 0].sum(1).tolist(), width)
        scores = scores.to(log_probs.dtype)  # what filters read where there is no draft

        def choose(position: int, drafted: Tensor) -> tuple[Tensor, Tensor]:
            before = proposal.tokens[:, :position]
            allowed = choices.allowed(scores[:, position], active, before)
            probs = proposal.probs
            if probs is not None:
                probs = probs[:, min(position, probs.size(1) - 1)]
            counts = choices.counts(active, position)
            token = choices.rule.decide(allowed, active.rows, counts, drafted, probs)
            index = token[:, None]  # (B,) -> (B, 1)
            impossible = allowed.gather(1, index) == NEG_INF
            log_prob = log_probs[:, position].gather(1, index)
            return token, log_prob.masked_fill(impossible, NEG_INF)[:, 0]

        return choose

    def _add(self, position: int, token: Tensor, log_prob: Tensor, used: Tensor) -> None:
        """The tokens (B,) of one position, and their log-probabilities (B,).

        used: (B,) bool, where the drafted tokens before it were accepted.
        """
        active, possible = self.active, log_prob > NEG_INF
        self.log_prob = torch.where(used & possible, self.log_prob + log_prob, self.log_prob)
        at_limit = active.generated + position + 1 >= active.limits
        ends = ~possible | at_limit
        for end in self.choices.eos:
            ends |= token == end
        self.unfinished = self.unfinished & ~(used & ends)
        columns = (active.rows, token, possible, self.log_prob, ends, at_limit & self.forces_end)
        self.decided.append((*columns, used))

    @property
    def results(self) -> list[StepResult]:
        """The results of all positions, one position after the other."""
        *columns, used = (torch.stack(column) for column in zip(*self.decided, strict=True))
        rows = zip(*(column[used].tolist() for column in columns), strict=True)
        return [
            StepResult(row, token if possible else None, log_prob, last, forced)
            for row, token, possible, log_prob, last, forced in rows
        ]

    def extended(self) -> ActiveSequences:
        """The sequences with the tokens that were decided."""
        tokens = torch.stack([token for _, token, *_ in self.decided], 1)
        return self.active.extended(tokens, self.counts, self.log_prob)


# ---------------------------------------------------------------------------- the statistics


@dataclass
class AcceptanceStats:
    """How many drafted tokens the model accepted.

    steps: of the model, counted once for each sequence.
    tokens: that these decided, end-of-sequence tokens included.
    drafted: tokens that a draft proposed.
    accepted: those of them that the model accepted.
    """

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens_per_step(self) -> float:
        """1 without a draft, or where no drafted token was accepted."""
        return self.tokens / self.steps if self.steps else 1.0

    def __str__(self) -> str:
        share = self.accepted / self.drafted if self.drafted else 0.0
        return (
            f"{self.tokens_per_step:.2f} tokens per step of the model; "
            f"{self.accepted:,} of {self.drafted:,} drafted tokens were accepted ({share:.0%})"
        )


_counting: ContextVar[tuple[AcceptanceStats, ...]] = ContextVar("counting", default=())


@contextmanager
def count_acceptance() -> Iterator[AcceptanceStats]:
    """Counts what speculative decoding does inside the block.

        with count_acceptance() as acceptance:
            generate(model, prompts, assistant_model="ngram")
        print(acceptance)

    Blocks may be nested: each counts what runs inside it.
    """
    stats = AcceptanceStats()
    token = _counting.set((stats, *_counting.get()))
    try:
        yield stats
    finally:
        _counting.reset(token)


def _count(steps: int, tokens: int, proposal: Proposal, accepted: int) -> None:
    drafted = int(proposal.counts.sum()) if _counting.get() else 0
    for stats in _counting.get():
        stats.steps += steps
        stats.tokens += tokens
        stats.drafted += drafted
        stats.accepted += accepted
