"""Beam search: the most probable hypotheses side by side, for a whole batch at once.

At every step the W running hypotheses of a sentence have W * V continuations. The best 2 * size of
them are ranked (at most W of these can end, so that enough others remain; with E tokens that end a
sequence, the best (1 + E) * size):

    those that end and are among the best `size` are finished;
    the best `size` of the others go on.

Sentences whose search has ended are removed from the batch.

Dimensions: A sentences whose search goes on, W running hypotheses of each, N ranked continuations
of each, W' hypotheses of the next step. The state has a row for each hypothesis, B = A * W.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from regard import ops
from regard.data.batches import Sequences
from regard.decoding import steps
from regard.decoding.filters import NEG_INF, Filter, Prefix, TokenIds, apply
from regard.decoding.length_penalty import LengthPenalty, Limit, Power, limits
from regard.decoding.loop import forces_end
from regard.decoding.option_types import check as check_option
from regard.decoding.ranking import (
    best_continuations,
    best_of_topk,
    ranked_count,
    run_compiled_search,
)
from regard.decoding.settings import Settings, check_common, check_no_sampling, common_settings
from regard.errors import ConfigError
from regard.models.protocols import Generator
from regard.state import State


@dataclass(frozen=True, eq=False)
class Expansion:
    """One step: the N best continuations of the W hypotheses of A sentences, best first.

    parent: (A, N) index of the hypothesis that is continued, below W.
    row: (A, N) the same hypothesis as a row of the state, below A * W.
    token: (A, N) the token that continues it.
    log_prob: (A, N) float64, of the whole continuation.
    ended: (A, N) bool, whether the token ends the sequence.
    continued: (A, W') which of the N continuations go on, as the hypotheses 0 … W' - 1 of the next
        step.
    """

    parent: Tensor
    row: Tensor
    token: Tensor
    log_prob: Tensor
    ended: Tensor
    continued: Tensor


# Called at every step of a search, such as by a picture of the beam, with the indices (A,) of the
# sentences in the batch, their continuations, and (A,) bool, whether the search for each ends here.
SearchListener = Callable[[Tensor, Expansion, Tensor], None]


@dataclass(frozen=True)
class Beam:
    """Beam search and its options.

    Args:
        size: running hypotheses of each source.
        n_best: hypotheses of each source that are returned; fewer where fewer were found.
        length_penalty: see `regard.decoding.length_penalty`.
        early_stopping: when the search for a source ends, as in transformers; a beam of one has no
            alternative, so that it is greedy search with every rule.
            True: as many hypotheses have finished as the beam is wide. The fastest, and fairseq's
            rule; a better hypothesis that would have finished later is missed.
            False: and the best running hypothesis would not enter among them if it ended at its
            current length. One whose mean improves as it grows can still be missed.
            "never": no running hypothesis can enter the n best any more, however long it gets.
        filters: what may come next.
        max_tokens: how many tokens may be generated.
        eos: the tokens that end a sequence; None: the model's own.

    Raises:
        ConfigError: an option out of range, or a filter that makes sense only for sampling.
    """

    size: int = 4
    n_best: int = 1
    length_penalty: LengthPenalty = Power(1.0)
    early_stopping: bool | Literal["never"] = False
    filters: tuple[Filter, ...] = ()
    max_tokens: Limit = 256
    eos: TokenIds | None = None

    def __post_init__(self) -> None:
        check_option("num_beams", self.size)
        check_option("num_return_sequences", self.n_best, "n_best")
        check_option("early_stopping", self.early_stopping)
        if self.n_best > self.size:
            raise ConfigError(f"`n_best` must be from 1 to `beams`, {self.size}: {self.n_best}.")
        check_common(self.max_tokens, self.eos)
        check_no_sampling(self.filters, "beam search")

    @torch.no_grad()
    def run(
        self, model: Generator, source: Sequences | None, listener: SearchListener | None = None
    ) -> steps.Hypotheses:
        """The `n_best` hypotheses of each source, best first.

        Args:
            source: the sources to answer or prompts to continue; None: one empty prompt.
            listener: is called at every step.
        """
        with steps.evaluating(model):
            state, tokens = steps.start_decoding(model, source)
            limit = limits(self.max_tokens, model, source, tokens.size(0)).to(tokens.device)
            if listener is None:
                results = run_compiled_search(
                    *(model, (state, tokens), limit, self.filters, self.eos, self.length_penalty),
                    size=self.size,
                    n_best=self.n_best,
                    early_stopping=self.stops,
                )
                if results is not None:
                    return results
            search = _Search(self, tokens, limit, steps.eos_tokens(self.eos, model), listener)
            while search.sentences.numel():
                step, state = search.expand(model, state)
                rows = search.advance(step)
                if rows.numel():
                    state = state.select(rows)
        return search.results

    @property
    def stops(self) -> bool | str:
        """The stopping rule; the first finished hypothesis ends a beam of one."""
        return self.early_stopping if self.size > 1 else True

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        return cls(
            size=settings.take("num_beams", 4),
            n_best=settings.take("num_return_sequences", 1),
            early_stopping=settings.take("early_stopping", False),
            **settings.common(),
        )

    def settings(self) -> dict[str, Any]:
        common = common_settings(self.filters, self.length_penalty, self.max_tokens, self.eos)
        options = {"do_sample": False, "num_beams": self.size, "num_return_sequences": self.n_best}
        return common | options | {"early_stopping": self.early_stopping}


class _Search:
    """A search that runs: W hypotheses of each of A sentences, those of a sentence side by side.

    W is 1 at first and grows to the beam's size.

    sentences: (A,) indices in the batch.
    tokens: (A * W, T), prompt or start token included.
    running: (A, W) float64, log-probabilities of the hypotheses.
    """

    def __init__(
        self,
        beam: Beam,
        tokens: Tensor,
        limits: Tensor,
        eos: TokenIds,
        listener: SearchListener | None,
    ):
        self.beam, self.limits, self.eos, self.listener = beam, limits, eos, listener
        self.count = ranked_count(beam.size, eos)
        self.forces_end = forces_end(beam.filters)
        self.generated, self.prompt_width = 0, tokens.size(1)
        self.tokens = tokens
        sentences, device = tokens.size(0), tokens.device
        self.sentences = torch.arange(sentences, device=device)
        self.running = torch.zeros(sentences, 1, dtype=torch.float64, device=device)
        self.finished = steps.FinishedHypotheses(sentences, beam.size, device)
        self.results: steps.Hypotheses = [[] for _ in range(sentences)]

    def expand(self, model: Generator, state: State) -> tuple[Expansion, State]:
        """The best continuations by the model's next step, and the state after it.

        Raises:
            NonFiniteStep: the model's scores are infinite or NaN.
        """
        fed = self.tokens[:, -1:].contiguous()  # (B, 1)
        scores, state = model.step(fed, state)
        scores = scores[:, -1]  # (B, 1, V) -> (B, V)
        return self._expansion(*self._best(scores), scores.size(1)), state

    def advance(self, step: Expansion) -> Tensor:
        """Go on with the best continuations.

        Returns:
            (A' * W',) the rows of the state that the hypotheses of the next step continue.
        """
        self.generated += 1
        at_limit = self.limits <= self.generated  # (A,)
        ends = (step.ended | at_limit[:, None])[:, : self.beam.size]
        ends &= step.log_prob[:, : self.beam.size] > NEG_INF
        self._finish(step, ends, at_limit)
        running = step.log_prob.masked_fill(step.ended, NEG_INF).gather(1, step.continued)
        done = at_limit | self._is_done(running[:, 0])
        if self.listener is not None:
            self.listener(self.sentences, step, done)
        row, token = step.row.gather(1, step.continued), step.token.gather(1, step.continued)
        if bool(done.any()):
            remaining = self._remove(done)
            row, token, running = row[remaining], token[remaining], running[remaining]
        rows = row.flatten()  # (A, W') -> (A * W',)
        self.tokens = torch.cat([self.tokens.index_select(0, rows), token.view(-1, 1)], 1)
        self.running = running
        return rows

    def _best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probabilities of the N best continuations, and their indices w * V + v, (A, N).

        scores: (B, V).
        """
        filters = self.beam.filters
        if not filters and ops.topk.has_implementation(scores, self.count):
            tokens, token_log_probs = ops.topk(scores, self.count)
            steps.check_log_probs(token_log_probs[:, 0].tolist(), self.tokens.size(1))
            return best_of_topk(tokens, token_log_probs, self.running, scores.size(1))
        log_probs = steps.normalized(scores)
        # One NaN makes a whole distribution NaN.
        steps.check_log_probs(log_probs[:, 0].tolist(), self.tokens.size(1))
        if filters:
            limits = self.limits.repeat_interleave(self.running.size(1))
            prefix = Prefix(self.tokens, self.generated, self.eos, limits)
            log_probs = apply(filters, log_probs, prefix)
        log_probs = log_probs.unflatten(0, self.running.shape)  # (A * W, V) -> (A, W, V)
        return best_continuations(log_probs, self.running, self.count)

    def _expansion(self, log_prob: Tensor, index: Tensor, vocab_size: int) -> Expansion:
        """The N best continuations, and which of them go on if the sentence does.

        Args:
            log_prob: (A, N) float64.
            index: (A, N), w * V + v.
        """
        (sentences, width), size = self.running.shape, self.beam.size
        parent = index // vocab_size
        token = index - parent * vocab_size
        row = parent + torch.arange(0, sentences * width, width, device=parent.device)[:, None]
        ended = torch.zeros_like(token, dtype=torch.bool)
        for end in self.eos:
            ended |= token == end
        next_width = max(min(size, token.size(1) - width * len(self.eos)), 1)
        order = ended.byte().argsort(dim=1, stable=True)  # (A, N), those that end come last
        continued = order[:, :next_width]
        return Expansion(parent, row, token, log_prob, ended, continued)

    def _finish(self, step: Expansion, ends: Tensor, at_limit: Tensor) -> None:
        """Collect the hypotheses that end among the best `size`.

        Args:
            ends: (A, size) bool, which end, with an end-of-sequence token or at the limit.
            at_limit: (A,) bool, which sentences are at their limits, where a filter may force ends.
        """
        if not bool(ends.any()):
            return
        size = self.beam.size
        scores = step.log_prob[:, :size] / self.beam.length_penalty(self.generated)
        forced = (at_limit[:, None] & self.forces_end).expand_as(step.ended)
        columns = (scores, step.log_prob, step.token, step.ended, forced)
        rows = zip(*(column[:, :size][ends].tolist() for column in columns), strict=True)
        prefixes = self.tokens[step.row[:, :size][ends], self.prompt_width :].tolist()
        hypotheses = [
            steps.Hypothesis(
                prefix if ended else [*prefix, token], score, log_prob, ended and not forced
            )
            for prefix, (score, log_prob, token, ended, forced) in zip(prefixes, rows, strict=True)
        ]
        self.finished.add(ends, scores, hypotheses)

    def _is_done(self, running: Tensor) -> Tensor:
        """(A,) bool: the stopping rule is met, or the filters allow no continuation.

        running: (A,) log-probability of the best hypothesis that goes on.
        """
        beam, scores, penalty = self.beam, self.finished.scores, self.beam.length_penalty
        if beam.stops is True:
            done = scores[:, -1].isfinite()
        elif beam.stops == "never":
            # log P only falls as a hypothesis grows, and the penalty is monotone, so that the best
            # score in reach is log P / penalty(n) at the next length or at the limit.
            at_next = torch.as_tensor(penalty(float(self.generated + 1)))
            at_limit = penalty(self.limits.to(running.dtype))  # (A,)
            bound = running / torch.maximum(at_limit, at_next.to(at_limit))
            done = bound <= scores[:, beam.n_best - 1]
        else:
            done = running / penalty(self.generated) <= scores[:, -1]
        return done | (running == NEG_INF)

    def _remove(self, done: Tensor) -> Tensor:
        """Store the results of sentences that are done, (A,) bool; the indices of the others."""
        for index in done.nonzero()[:, 0].tolist():
            best = self.finished.of(index, self.beam.n_best)
            self.results[int(self.sentences[index])] = best or [self._truncated(index)]
        remaining = (~done).nonzero()[:, 0]
        self.sentences, self.limits = self.sentences[remaining], self.limits[remaining]
        self.finished.select(remaining)
        return remaining

    def _truncated(self, index: int) -> steps.Hypothesis:
        """The best hypothesis of a sentence before this step, where the filters allow no token."""
        log_prob = float(self.running[index, 0])
        score = log_prob / self.beam.length_penalty(max(self.generated - 1, 1))
        tokens = self.tokens[index * self.running.size(1), self.prompt_width :].tolist()
        return steps.Hypothesis(tokens, score, log_prob, False)
