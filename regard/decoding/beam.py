"""Beam search: the most probable hypotheses side by side, for a whole batch at once.

At every step the W running hypotheses of a sentence have W * V continuations. The best 2 * size
of them are looked at (at most W of these can be ends, so that enough others remain; with E tokens
that end a sequence, the best (1 + E) * size):

    those that end and stand among the best `size` are finished;
    the best `size` of the others go on.

Sentences whose search is over leave the batch, so that the work shrinks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from regard import ops
from regard.data.batches import Sequences
from regard.decoding import cuda_graphs
from regard.decoding.compiled_search import looked_at, search_at_once
from regard.decoding.filters import Filter, Prefix, apply
from regard.decoding.finished import FinishedHypotheses
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.length_penalty import LengthPenalty, Limit, Power, check_limit, limits
from regard.decoding.loop import forces_end
from regard.decoding.option_types import check as check_value
from regard.decoding.settings import (
    Settings,
    check_eos,
    common_settings,
    refuse_sampling,
    stopping_settings,
)
from regard.decoding.steps import (
    check,
    ends_of,
    evaluating,
    leading_after,
    normalized,
    start_decoding,
)
from regard.decoding.stopping import BeamFinished, CurrentLength, SearchStatus, Stopping
from regard.decoding.topk import best_continuations, best_of_topk
from regard.errors import ConfigError
from regard.ops import TopKTokens

NEG_INF = float("-inf")


@dataclass(frozen=True, eq=False)
class Expansion:
    """One step: the K best continuations of the W hypotheses of A sentences, best first.

    parent: (A, K) which of the W it continues.  row: (A, K) the same as a row of the state.
    token: (A, K) what it adds.  log_prob: (A, K) float64, from the beginning.
    ended: (A, K) bool, the token is an end.
    kept: (A, W') which continuations go on, as the hypotheses 0 … W' - 1 of the next step.
    """

    parent: Tensor
    row: Tensor
    token: Tensor
    log_prob: Tensor
    ended: Tensor
    kept: Tensor


class SearchListener(Protocol):
    """Hears of every step of a search, for pictures."""

    def expanded(self, sentences: Tensor, step: Expansion, done: Tensor) -> None:
        """sentences: (A,) their numbers.  done: (A,) bool, after this step nothing goes on."""
        ...


class Silence:
    """Nobody listens."""

    def expanded(self, sentences: Tensor, step: Expansion, done: Tensor) -> None:
        pass


SILENCE = Silence()


@dataclass(frozen=True)
class Beam:
    """Beam search and its options.

    size: running hypotheses a sentence.  n_best: how many are given back, best first; fewer where
    fewer were found.  length_penalty: see `lengths`.  stopping: see `stopping`; a beam of one is
    greedy search, whatever the rule, because it keeps no alternative.

    Raises:
        ConfigError: an option out of range, or a filter that makes sense only for sampling.
    """

    size: int = 4
    n_best: int = 1
    length_penalty: LengthPenalty = Power(1.0)
    stopping: Stopping = CurrentLength()
    filters: tuple[Filter, ...] = ()
    max_tokens: Limit = 256
    eos: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_value("num_beams", self.size, "beams")
        check_value("num_return_sequences", self.n_best, "n_best")
        if self.n_best > self.size:
            raise ConfigError(
                f"`n_best` must be between 1 and `beams`, {self.size}, but is {self.n_best}."
            )
        check_limit(self.max_tokens)
        check_eos(self.eos)
        refuse_sampling(self.filters, "beam search")

    @torch.no_grad()
    def run(
        self, model: Any, source: Sequences | None, listener: SearchListener = SILENCE
    ) -> list[list[Hypothesis]]:
        """For each sentence its `n_best` hypotheses, best first."""
        with evaluating(model):
            state, tokens = start_decoding(model, source)
            room = limits(self.max_tokens, model, source, tokens.size(0)).to(tokens.device)
            if listener is SILENCE:
                found = search_at_once(
                    model,
                    (state, tokens),
                    room,
                    size=self.size,
                    n_best=self.n_best,
                    penalty=self.length_penalty,
                    stopping=_rule(self),
                    eos=self.eos,
                    filters=self.filters,
                )
                if found is not None:
                    return found
            search = _Search(self, tokens, room, ends_of(self.eos, model), listener)
            while search.sentences.numel():
                step, state = search.look(model, state)
                rows = search.advance(step)
                if rows.numel():
                    state = state.select(rows)
        return search.results

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """See `regard.decoding.settings`."""
        return cls(
            size=settings.take("num_beams", 4),
            n_best=settings.take("num_return_sequences", 1),
            length_penalty=settings.length_penalty(),
            stopping=settings.stopping(),
            filters=settings.filters(),
            max_tokens=settings.max_tokens(),
            eos=settings.eos(),
        )

    def settings(self) -> dict[str, Any]:
        """The names of generation_config.json."""
        own = {"do_sample": False, "num_beams": self.size, "num_return_sequences": self.n_best}
        return common_settings(self) | own | stopping_settings(self.stopping)


def _rule(beam: Beam) -> Stopping:
    return beam.stopping if beam.size > 1 else BeamFinished()


class _Search:
    """The running hypotheses of A sentences, W each; those of a sentence stand together.

    W is 1 at the beginning, where there is one hypothesis, and grows to the beam's size.
    """

    def __init__(
        self,
        beam: Beam,
        tokens: Tensor,
        room: Tensor,
        ends: tuple[int, ...],
        listener: SearchListener,
    ):
        self.beam, self.room, self.ends, self.listener = beam, room, ends, listener
        self.count = looked_at(beam.size, ends)  # continuations of a sentence
        self.forced = forces_end(beam.filters)
        self.stopping = _rule(beam)
        self.new, self.begun = 0, tokens.size(1)
        self.tokens = tokens  # (A * W, T)
        count, device = tokens.size(0), tokens.device
        self.sentences = torch.arange(count, device=device)
        self.running = torch.zeros(count, 1, dtype=torch.float64, device=device)  # (A, W)
        self.pool = FinishedHypotheses(count, beam.size, device)
        self.results: list[list[Hypothesis]] = [[] for _ in range(count)]

    def look(self, model: Any, state: Any) -> tuple[Expansion, Any]:
        """The best continuations by the model's next step, and its state after that.

        Raises:
            RegardError: the scores are no numbers.
        """
        fed = self.tokens[:, -1:].contiguous()
        found = None if self.beam.filters else leading_after(model, fed, state, self.count)
        if found is not None:
            leaders, state = found
            return self._expand(*self._of_leaders(leaders), leaders.vocab_size), state
        scores, state = cuda_graphs.step(model, fed, state)
        scores = scores[:, -1]  # (R, 1, V) -> (R, V)
        return self._expand(*self._best(scores), scores.size(1)), state

    def advance(self, step: Expansion) -> Tensor:
        """One step: for each new row the old one it continues."""
        self.new += 1
        full = self.room <= self.new  # (A,)
        ends = (step.ended | full[:, None])[:, : self.beam.size]
        ends &= step.log_prob[:, : self.beam.size] > NEG_INF
        self._finish(step, ends, full)
        running = step.log_prob.masked_fill(step.ended, NEG_INF).gather(1, step.kept)
        done = full | self._over(running[:, 0])
        self.listener.expanded(self.sentences, step, done)
        row, token = step.row.gather(1, step.kept), step.token.gather(1, step.kept)
        if bool(done.any()):
            stay = self._leave(done)
            row, token, running = row[stay], token[stay], running[stay]
        rows = row.flatten()  # (A, W') -> (A * W',)
        self.tokens = torch.cat([self.tokens.index_select(0, rows), token.view(-1, 1)], 1)
        self.running = running
        return rows

    def _best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Of A sentences the best K continuations and their indices w * V + v: (A, K)"""
        filters = self.beam.filters
        if not filters and ops.topk.has_implementation(scores, self.count):
            return self._of_leaders(ops.topk(scores, self.count))
        log_probs = normalized(scores)
        # One NaN makes a whole distribution NaN.
        check(log_probs[:, 0].tolist(), self.tokens.size(1))
        if filters:
            room = self.room.repeat_interleave(self.running.size(1))
            log_probs = apply(filters, log_probs, Prefix(self.tokens, self.new, self.ends, room))
        # (A * W, V) -> (A, W, V)
        return best_continuations(
            log_probs.unflatten(0, self.running.shape), self.running, self.count
        )

    def _of_leaders(self, found: TopKTokens) -> tuple[Tensor, Tensor]:
        """The same of the best words of each hypothesis."""
        check(found.log_probs[:, 0].tolist(), self.tokens.size(1))
        return best_of_topk(found.tokens, found.log_probs, self.running, found.vocab_size)

    def _expand(self, log_prob: Tensor, index: Tensor, vocabulary: int) -> Expansion:
        """The best K continuations, and which of them go on if the sentence does."""
        (count, width), size = self.running.shape, self.beam.size
        parent = index // vocabulary
        token = index - parent * vocabulary
        row = parent + torch.arange(0, count * width, width, device=parent.device)[:, None]
        ended, ends = torch.zeros_like(token, dtype=torch.bool), width * len(self.ends)
        for end in self.ends:
            ended |= token == end
        others = max(min(size, token.size(1) - ends), 1)
        kept = ended.byte().argsort(dim=1, stable=True)[:, :others]  # those that end come last
        return Expansion(parent, row, token, log_prob, ended, kept)

    def _finish(self, step: Expansion, ends: Tensor, full: Tensor) -> None:
        """Puts what ends among the best `size` into the pool: (A, size) bool.

        full: (A,) which sentences are at their limits, where ends may be forced.
        """
        if not bool(ends.any()):
            return
        size = self.beam.size
        scores = step.log_prob[:, :size] / self.beam.length_penalty(self.new)
        cut = (full[:, None] & self.forced).expand_as(step.ended)
        columns = (scores, step.log_prob, step.token, step.ended, cut)
        score, log_prob, token, ended, forced = (c[:, :size][ends].tolist() for c in columns)
        prefixes = self.tokens[step.row[:, :size][ends], self.begun :].tolist()
        found = [
            Hypothesis(
                prefix if end else [*prefix, token[at]],
                *(score[at], log_prob[at], end and not forced[at]),
            )
            for at, (prefix, end) in enumerate(zip(prefixes, ended, strict=True))
        ]
        self.pool.add(ends, scores, found)

    def _over(self, running: Tensor) -> Tensor:
        """(A,) bool: the stopping rule is met, or the filters allow nothing any more."""
        beam, pool = self.beam, self.pool.scores
        standing = SearchStatus(
            pool, running, self.new, self.room, beam.length_penalty, beam.n_best
        )
        return self.stopping(standing) | (running == NEG_INF)

    def _leave(self, done: Tensor) -> Tensor:
        """Takes down the results of sentences that are done; gives those that stay."""
        for at in done.nonzero()[:, 0].tolist():
            found = self.pool.of(at, self.beam.n_best)
            self.results[int(self.sentences[at])] = found or [self._cut_off(at)]
        stay = (~done).nonzero()[:, 0]
        self.sentences, self.room = self.sentences[stay], self.room[stay]
        self.pool.select(stay)
        return stay

    def _cut_off(self, at: int) -> Hypothesis:
        """The best hypothesis before this step, where the filters allowed nothing after it."""
        log_prob = float(self.running[at, 0])
        score = log_prob / self.beam.length_penalty(max(self.new - 1, 1))
        tokens = self.tokens[at * self.running.size(1), self.begun :].tolist()
        return Hypothesis(tokens, score, log_prob, False)
