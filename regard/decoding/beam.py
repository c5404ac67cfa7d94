"""Beam search: the most probable hypotheses side by side, for a whole batch at once.

At every step the W running hypotheses of a sentence have W * V continuations. The best 2 * size of
them are expanded (at most W of these can end, so that enough others remain; with E tokens that end
a sequence, the best (1 + E) * size):

    those that end and are among the best `size` are finished;
    the best `size` of the others go on.

Sentences whose search is over leave the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from regard import ops
from regard.data.batches import Sequences
from regard.decoding.compiled_search import SearchOptions, looked_at, search_at_once
from regard.decoding.filters import NEG_INF, Filter, Prefix, apply
from regard.decoding.finished import FinishedHypotheses
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.length_penalty import LengthPenalty, Limit, Power, limits
from regard.decoding.loop import forces_end
from regard.decoding.option_types import check as check_option
from regard.decoding.settings import (
    Settings,
    check_common,
    check_no_sampling,
    common_settings,
    stopping_settings,
)
from regard.decoding.steps import check, ends_of, evaluating, normalized, start_decoding
from regard.decoding.stopping import BeamFinished, CurrentLength, SearchStatus, Stopping
from regard.decoding.topk import best_continuations, best_of_topk
from regard.errors import ConfigError
from regard.models.protocols import Generator
from regard.ops import TopKTokens
from regard.state import State


@dataclass(frozen=True, eq=False)
class Expansion:
    """One step: the K best continuations of the W hypotheses of A sentences, best first.

    parent: (A, K) index of the hypothesis that is continued, below W.
    row: (A, K) the same hypothesis as a row of the state.
    token: (A, K) what is added.
    log_prob: (A, K) float64, of the whole hypothesis.
    ended: (A, K) bool, the token ends the sequence.
    kept: (A, W') the continuations that go on, as the hypotheses 0 … W' - 1 of the next step.
    """

    parent: Tensor
    row: Tensor
    token: Tensor
    log_prob: Tensor
    ended: Tensor
    kept: Tensor


class SearchListener(Protocol):
    """Is called at every step of a search, for pictures."""

    def expanded(self, sentences: Tensor, step: Expansion, done: Tensor) -> None:
        """One step.

        Args:
            sentences: (A,) their indices in the batch.
            step: their continuations.
            done: (A,) bool, the search of this sentence is over.
        """


@dataclass(frozen=True)
class Beam:
    """Beam search and its options.

    Args:
        size: running hypotheses of each sentence.
        n_best: how many are returned, best first; fewer where fewer were found.
        length_penalty: see `regard.decoding.length_penalty`.
        stopping: see `regard.decoding.stopping`; a beam of one has no alternative, so that it is
            greedy search with every rule.
        filters: what may come next.
        max_tokens: how many tokens may be generated.
        eos: the tokens that end a sequence; None: the model's own.

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
        check_option("num_beams", self.size)
        check_option("num_return_sequences", self.n_best, "n_best")
        if self.n_best > self.size:
            raise ConfigError(
                f"`n_best` must be between 1 and `beams`, {self.size}, but is {self.n_best}."
            )
        check_common(self.max_tokens, self.eos)
        check_no_sampling(self.filters, "beam search")

    @torch.no_grad()
    def run(
        self, model: Generator, source: Sequences | None, listener: SearchListener | None = None
    ) -> list[list[Hypothesis]]:
        """The `n_best` hypotheses of each source, best first.

        Args:
            source: B sources to answer or prompts to continue; None: one empty prompt.
            listener: is called at every step.
        """
        with evaluating(model):
            state, tokens = start_decoding(model, source)
            limit = limits(self.max_tokens, model, source, tokens.size(0)).to(tokens.device)
            if listener is None:
                which = self.size, self.n_best, self.length_penalty, self._rule
                options = SearchOptions(*which, self.eos, self.filters)
                found = search_at_once(model, (state, tokens), limit, options)
                if found is not None:
                    return found
            search = _Search(self, tokens, limit, ends_of(self.eos, model), listener)
            while search.sentences.numel():
                step, state = search.expand(model, state)
                rows = search.advance(step)
                if rows.numel():
                    state = state.select(rows)
        return search.results

    @property
    def _rule(self) -> Stopping:
        return self.stopping if self.size > 1 else BeamFinished()

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """See `regard.decoding.method`."""
        return cls(
            size=settings.take("num_beams", 4),
            n_best=settings.take("num_return_sequences", 1),
            stopping=settings.stopping(),
            **settings.common(),
        )

    def settings(self) -> dict[str, Any]:
        """See `regard.decoding.method`."""
        common = common_settings(self.filters, self.length_penalty, self.max_tokens, self.eos)
        own = {"do_sample": False, "num_beams": self.size, "num_return_sequences": self.n_best}
        return common | own | stopping_settings(self.stopping)


class _Search:
    """The W running hypotheses of each of A sentences; those of a sentence are neighbours.

    W is 1 at first and grows to the beam's size.
    """

    def __init__(
        self,
        beam: Beam,
        tokens: Tensor,
        limits: Tensor,
        eos: tuple[int, ...],
        listener: SearchListener | None,
    ):
        self.beam, self.limits, self.eos, self.listener = beam, limits, eos, listener
        self.count = looked_at(beam.size, eos)  # continuations of a sentence
        self.forced = forces_end(beam.filters)
        self.generated, self.prompt = 0, tokens.size(1)
        self.tokens = tokens  # (A * W, T)
        count, device = tokens.size(0), tokens.device
        self.sentences = torch.arange(count, device=device)
        self.running = torch.zeros(count, 1, dtype=torch.float64, device=device)  # (A, W)
        self.finished = FinishedHypotheses(count, beam.size, device)
        self.results: list[list[Hypothesis]] = [[] for _ in range(count)]

    def expand(self, model: Generator, state: State) -> tuple[Expansion, State]:
        """The best continuations by the model's next step, and the state after it.

        Raises:
            RegardError: the scores are NaN.
        """
        fed = self.tokens[:, -1:].contiguous()
        found = None if self.beam.filters else model.topk(fed, state, self.count)
        if found is not None:
            topk, state = found
            return self._expansion(*self._best_of_topk(topk), topk.vocab_size), state
        scores, state = model.step(fed, state)
        scores = scores[:, -1]  # (R, 1, V) -> (R, V)
        return self._expansion(*self._best(scores), scores.size(1)), state

    def advance(self, step: Expansion) -> Tensor:
        """Go on with the best continuations: for each new row the old one that it continues."""
        self.generated += 1
        full = self.limits <= self.generated  # (A,)
        ends = (step.ended | full[:, None])[:, : self.beam.size]
        ends &= step.log_prob[:, : self.beam.size] > NEG_INF
        self._finish(step, ends, full)
        running = step.log_prob.masked_fill(step.ended, NEG_INF).gather(1, step.kept)
        done = full | self._over(running[:, 0])
        if self.listener is not None:
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
            return self._best_of_topk(ops.topk(scores, self.count))
        log_probs = normalized(scores)
        # One NaN makes a whole distribution NaN.
        check(log_probs[:, 0].tolist(), self.tokens.size(1))
        if filters:
            limits = self.limits.repeat_interleave(self.running.size(1))
            prefix = Prefix(self.tokens, self.generated, self.eos, limits)
            log_probs = apply(filters, log_probs, prefix)
        log_probs = log_probs.unflatten(0, self.running.shape)  # (A * W, V) -> (A, W, V)
        return best_continuations(log_probs, self.running, self.count)

    def _best_of_topk(self, topk: TopKTokens) -> tuple[Tensor, Tensor]:
        """The same, from the best tokens of each hypothesis."""
        check(topk.log_probs[:, 0].tolist(), self.tokens.size(1))
        return best_of_topk(topk.tokens, topk.log_probs, self.running, topk.vocab_size)

    def _expansion(self, log_prob: Tensor, index: Tensor, vocab_size: int) -> Expansion:
        """The best K continuations, and which of them go on if the sentence does."""
        (count, width), size = self.running.shape, self.beam.size
        parent = index // vocab_size
        token = index - parent * vocab_size
        row = parent + torch.arange(0, count * width, width, device=parent.device)[:, None]
        ended = torch.zeros_like(token, dtype=torch.bool)
        for end in self.eos:
            ended |= token == end
        others = max(min(size, token.size(1) - width * len(self.eos)), 1)
        kept = ended.byte().argsort(dim=1, stable=True)[:, :others]  # those that end come last
        return Expansion(parent, row, token, log_prob, ended, kept)

    def _finish(self, step: Expansion, ends: Tensor, full: Tensor) -> None:
        """Collect the hypotheses that end among the best `size`.

        Args:
            ends: (A, size) bool, which end.
            full: (A,) bool, which sentences are at their limits, where ends may be forced.
        """
        if not bool(ends.any()):
            return
        size = self.beam.size
        scores = step.log_prob[:, :size] / self.beam.length_penalty(self.generated)
        cut = (full[:, None] & self.forced).expand_as(step.ended)
        columns = (scores, step.log_prob, step.token, step.ended, cut)
        found = zip(*(column[:, :size][ends].tolist() for column in columns), strict=True)
        prefixes = self.tokens[step.row[:, :size][ends], self.prompt :].tolist()
        hypotheses = [
            Hypothesis(prefix if ended else [*prefix, token], score, log_prob, ended and not forced)
            for prefix, (score, log_prob, token, ended, forced) in zip(prefixes, found, strict=True)
        ]
        self.finished.add(ends, scores, hypotheses)

    def _over(self, running: Tensor) -> Tensor:
        """(A,) bool: the stopping rule is met, or the filters allow no continuation."""
        beam, scores, count = self.beam, self.finished.scores, self.generated
        status = SearchStatus(scores, running, count, self.limits, beam.length_penalty, beam.n_best)
        return beam._rule(status) | (running == NEG_INF)

    def _leave(self, done: Tensor) -> Tensor:
        """Store the results of sentences that are done; return the indices of the others."""
        for index in done.nonzero()[:, 0].tolist():
            found = self.finished.of(index, self.beam.n_best)
            self.results[int(self.sentences[index])] = found or [self._truncated(index)]
        stay = (~done).nonzero()[:, 0]
        self.sentences, self.limits = self.sentences[stay], self.limits[stay]
        self.finished.select(stay)
        return stay

    def _truncated(self, index: int) -> Hypothesis:
        """The best hypothesis before this step, where the filters allowed nothing after it."""
        log_prob = float(self.running[index, 0])
        score = log_prob / self.beam.length_penalty(max(self.generated - 1, 1))
        tokens = self.tokens[index * self.running.size(1), self.prompt :].tolist()
        return Hypothesis(tokens, score, log_prob, False)
