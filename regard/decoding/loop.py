"""Greedy search and sampling: one token of each sequence at every step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding.filters import NEG_INF, Filter, ForcedEnd, Prefix, Renormalize, TokenIds, apply
from regard.decoding.length_penalty import LengthPenalty, Limit, Power, limits
from regard.decoding.option_types import check
from regard.decoding.ranking import Draw, row_seeds, run_compiled_search
from regard.decoding.settings import Settings, check_common, check_no_sampling, common_settings
from regard.decoding.steps import (
    Hypotheses,
    Hypothesis,
    check_log_probs,
    eos_tokens,
    evaluating,
    most_probable,
    normalized,
    start_decoding,
)
from regard.models.protocols import Generator
from regard.state import State

# Scores (B, V), the sequences so far, their indices in the batch (B,) -> the next tokens (B,) and
# their log-probabilities (B,): minus infinity where the filters allow no token, NaN where the
# scores are NaN.
Chooser = Callable[[Tensor, Prefix, Tensor], tuple[Tensor, Tensor]]
# Filtered scores (B, V), indices of the sequences (B,), tokens generated before -> tokens (B,).
Pick = Callable[[Tensor, Tensor, int], Tensor]
# The next token of a sequence -> whether the sequence ends with it.
Watcher = Callable[[int], bool]
# What ends a sequence beside the end-of-sequence tokens: called with a prompt, or with nothing.
EndRule = Callable[[Sequence[int]], Watcher]


@dataclass(frozen=True)
class StepResult:
    """The next token of one sequence.

    row: the index of the sequence in the batch.
    token: None where the filters allow no token.
    log_prob: of the sequence so far, this token included.
    last: whether the sequence ends here.
    forced: whether it ends with an end-of-sequence token that a filter forced at the limit.
    stopped: whether an `EndRule` ends it.
    """

    row: int
    token: int | None
    log_prob: float
    last: bool
    forced: bool = False
    stopped: bool = False


StepResults = list[StepResult]  # of the sequences that a step has continued


class TokenMethod(ABC):
    """Greedy search or sampling: each step of the model decides one token of each sequence, so that
    its text can be streamed.

    length_penalty: divides the log-probability in the score that is reported.
    filters: what may come next.
    max_tokens: how many tokens may be generated.
    eos: the tokens that end a sequence; None: the model's own.
    ends: further rules that end a sequence.
    """

    length_penalty: LengthPenalty
    filters: tuple[Filter, ...]
    max_tokens: Limit
    eos: TokenIds | None
    ends: tuple[EndRule, ...]

    @property
    def copies(self) -> int:
        """Sequences for each source."""
        return 1

    def watchers(self, prompt: Sequence[int]) -> list[Watcher]:
        """What is called with each token of a sequence after this prompt."""
        return [rule(prompt) for rule in self.ends]

    def run(
        self,
        model: Generator,
        source: Sequences | None,
        started: tuple[State, Tensor] | None = None,
    ) -> Hypotheses:
        """The hypotheses of each source.

        Args:
            source: the sources to answer or prompts to continue; None: one empty prompt.
            started: see `steps`.
        """
        with torch.no_grad(), evaluating(model):
            started = started or start_decoding(model, source)
            if compiled := self.compiled(model, source, started):
                return compiled
        collector = self.collector(model)
        for results in self.steps(model, source, started):
            collector.add(results)
        return collector.results()

    def compiled(
        self, model: Generator, source: Sequences | None, started: tuple[State, Tensor]
    ) -> Hypotheses | None:
        """The hypotheses as one compiled call finds them; None where it cannot."""
        return None

    @abstractmethod
    def chooser(self, source: Sequences | None, limits: Tensor) -> Chooser:
        """What chooses the tokens of sequences with these limits (B,)."""

    @torch.no_grad()
    def steps(
        self,
        model: Generator,
        source: Sequences | None,
        started: tuple[State, Tensor] | None = None,
    ) -> Iterator[StepResults]:
        """Token by token; sample i of source b has the row b * copies + i.

        started: what `start_decoding` returned, if it was called before.
        """
        with evaluating(model):
            state, tokens = started or start_decoding(model, source)
            limit = limits(self.max_tokens, model, source, tokens.size(0))
            if self.copies > 1:
                limit = limit.repeat_interleave(self.copies)
                sources = torch.arange(limit.size(0), device=tokens.device) // self.copies
                state, tokens = state.select(sources), tokens[sources]
            rows = torch.arange(limit.size(0), device=tokens.device)
            filters, eos = self.filters, eos_tokens(self.eos, model)
            choose, forced = self.chooser(source, limit), forces_end(filters)
            active = [ActiveSequence(row, count) for row, count in enumerate(limit.tolist())]
            if self.ends:  # nothing else reads the prompts here
                prompts = prompts_of(model, source, self.copies)
                for sequence, prompt in zip(active, prompts, strict=True):
                    sequence.watchers = self.watchers(prompt)
            state = state.expect_tokens(int(limit.max())) if active else state
            limit, fed = limit.to(tokens.device), tokens[:, -1:].contiguous()
            count, prompt_width = 0, tokens.size(1)
            while active:
                scores, state = model.step(fed, state)
                token, log_prob = choose(scores[:, -1], Prefix(tokens, count, eos, limit), rows)
                fed = token[:, None]  # (B,) -> (B, 1)
                ids, log_probs = _on_cpu(token, log_prob)
                check_log_probs(log_probs, prompt_width + count)
                count += 1
                if filters:  # nothing else reads the tokens
                    tokens = torch.cat([tokens, fed], 1)
                results = [
                    sequence.add(token_id, gain, count, eos, forced)
                    for sequence, token_id, gain in zip(active, ids, log_probs, strict=True)
                ]
                yield results
                remaining = [index for index, result in enumerate(results) if not result.last]
                if len(remaining) < len(active):
                    active = [active[index] for index in remaining]
                    keep = rows.new_tensor(remaining)
                    rows, fed, tokens, limit = (x[keep] for x in (rows, fed, tokens, limit))
                    state = state.select(keep) if active else state

    def collector(self, model: Generator) -> Collector:
        """What turns the results of the steps into hypotheses."""
        return Collector(eos_tokens(self.eos, model), self.length_penalty, self.copies)


@dataclass
class ActiveSequence:
    """A sequence that has not ended.

    row: its index in the batch.
    limit: how many tokens may be generated.
    log_prob: of the tokens generated so far.
    watchers: are called with each of its tokens.
    """

    row: int
    limit: int
    log_prob: float = 0.0
    watchers: Sequence[Watcher] = ()

    def add(
        self, token: int, log_prob: float, count: int, eos: TokenIds, forced: bool
    ) -> StepResult:
        """Add the next token, the generated token number `count`.

        Args:
            log_prob: of the token; minus infinity where the filters allow none.
            eos: the tokens that end a sequence.
            forced: whether a filter forces an end at the limit.
        """
        if log_prob == NEG_INF:
            return StepResult(self.row, None, self.log_prob, True)
        self.log_prob += log_prob
        at_limit = count >= self.limit
        stopped = any([watcher(token) for watcher in self.watchers])
        last = at_limit or stopped or token in eos
        return StepResult(self.row, token, self.log_prob, last, forced and at_limit, stopped)


def prompts_of(model: Generator, source: Sequences | None, copies: int) -> list[Sequence[int]]:
    """What precedes each sequence: its prompt, or nothing where a model answers a source."""
    if source is None:
        return [()] * copies
    lengths = source.lengths.tolist()
    ids = [row[:count] for row, count in zip(source.ids.tolist(), lengths, strict=True)]
    return [prompt if model.continues else () for prompt in ids for _ in range(copies)]


def _on_cpu(tokens: Tensor, log_probs: Tensor) -> tuple[list[int], list[float]]:
    """Both columns (B,) as Python numbers, by one device synchronization."""
    ids, values = torch.stack([tokens.double(), log_probs.double()]).tolist()
    return [int(token) for token in ids], values  # float64 holds every token exactly


def choose_filtered(filters: Sequence[Filter], pick: Pick) -> Chooser:
    """The chooser that picks among the tokens that the filters allow."""

    def choose(scores: Tensor, prefix: Prefix, rows: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = normalized(scores)
        allowed = apply(filters, scores.to(log_probs.dtype), prefix)
        token = pick(allowed, rows, prefix.generated)
        index = token[:, None]  # (B,) -> (B, 1)
        log_prob = log_probs.gather(1, index)
        impossible = (allowed.gather(1, index) == NEG_INF) & ~log_prob.isnan()
        return token, log_prob.masked_fill(impossible, NEG_INF)[:, 0]

    return choose


def forces_end(filters: Sequence[Filter]) -> bool:
    """Whether a filter forces an end at the limit."""
    return any(isinstance(part, ForcedEnd) for part in filters)


class Collector:
    """Turns the results of steps into hypotheses.

    Args:
        eos: the tokens that end a sequence.
        penalty: divides the log-probabilities.
        copies: sequences for each source.
    """

    def __init__(self, eos: TokenIds, penalty: LengthPenalty, copies: int = 1):
        self.eos, self.penalty, self.copies = eos, penalty, copies
        self._tokens: dict[int, list[int]] = {}
        self._ended: dict[int, Hypothesis] = {}

    def add(self, results: Iterable[StepResult]) -> None:
        """Add the results of one step."""
        for result in results:
            tokens = self._tokens.setdefault(result.row, [])
            if result.token is not None:
                tokens.append(result.token)
            if result.last:
                self._ended[result.row] = self._hypothesis(tokens, result)

    def _hypothesis(self, tokens: list[int], last: StepResult) -> Hypothesis:
        score = last.log_prob / self.penalty(max(len(tokens), 1))
        ended = last.token is not None and last.token in self.eos
        without_end = tokens[:-1] if ended else tokens
        finished = (ended or last.stopped) and not last.forced
        return Hypothesis(without_end, score, last.log_prob, finished)

    def results(self) -> Hypotheses:
        """For each source its `copies` hypotheses; complete when all steps have been added."""
        ended = [self._ended[row] for row in sorted(self._ended)]
        return [ended[row : row + self.copies] for row in range(0, len(ended), self.copies)]


@dataclass(frozen=True)
class Greedy(TokenMethod):
    """Greedy search and its options.

    It gives the tokens and scores of a beam of one. Of equally probable tokens the lowest id wins.

    Args:
        length_penalty: normalizes the score that is reported, and nothing else.
        filters: what may come next.
        max_tokens: how many tokens may be generated.
        eos: the tokens that end a sequence; None: the model's own.
        ends: further rules that end a sequence.

    Raises:
        ConfigError: an option out of range, or a filter that makes sense only for sampling.
    """

    length_penalty: LengthPenalty = Power(1.0)
    filters: tuple[Filter, ...] = ()
    max_tokens: Limit = 256
    eos: TokenIds | None = None
    ends: tuple[EndRule, ...] = ()

    def __post_init__(self) -> None:
        check_common(self.max_tokens, self.eos)
        check_no_sampling(self.filters, "greedy search")

    def compiled(
        self, model: Generator, source: Sequences | None, started: tuple[State, Tensor]
    ) -> Hypotheses | None:
        if any(isinstance(part, Renormalize | ForcedEnd) for part in self.filters):
            return None  # these change the scores of a beam, but not those of greedy search
        if self.ends:
            return None
        limit = limits(self.max_tokens, model, source, started[1].size(0))
        options = self.filters, self.eos, self.length_penalty
        return run_compiled_search(model, started, limit, *options)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        return cls(**settings.common())

    def settings(self) -> dict[str, Any]:
        common = common_settings(self.filters, self.length_penalty, self.max_tokens, self.eos)
        return common | {"do_sample": False, "num_beams": 1}

    def chooser(self, source: Sequences | None, limits: Tensor) -> Chooser:
        if self.filters:
            return choose_filtered(self.filters, lambda scores, rows, count: scores.argmax(-1))
        return lambda scores, prefix, rows: most_probable(scores)


@dataclass(frozen=True)
class Sampling(TokenMethod):
    """Sampling and its options: `samples` independent sequences for each source.

    A sample is a function of the model, the source's tokens, `seed` and its own number 0, 1, …: a
    source has the same samples alone and in any batch, in any order.

    Args:
        filters: what may come next; temperature, top-k and top-p are filters.
        samples: sequences for each source.
        seed: of the random numbers.
        length_penalty: normalizes the score that is reported, and nothing else.
        max_tokens: how many tokens may be generated.
        eos: the tokens that end a sequence; None: the model's own.
        ends: further rules that end a sequence.

    Raises:
        ConfigError: an option out of range.
    """

    filters: tuple[Filter, ...] = ()
    samples: int = 1
    seed: int = 0
    length_penalty: LengthPenalty = Power(1.0)
    max_tokens: Limit = 256
    eos: TokenIds | None = None
    ends: tuple[EndRule, ...] = ()

    def __post_init__(self) -> None:
        check_common(self.max_tokens, self.eos)
        check("num_return_sequences", self.samples, "samples")
        check("seed", self.seed)

    @property
    def copies(self) -> int:
        return self.samples

    def chooser(self, source: Sequences | None, limits: Tensor) -> Chooser:
        return choose_filtered(
            self.filters, Draw(row_seeds(source, self.samples, self.seed), limits)
        )

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        return cls(
            samples=settings.take("num_return_sequences", 1),
            seed=settings.take("seed", 0),
            **settings.common(),
        )

    def settings(self) -> dict[str, Any]:
        common = common_settings(self.filters, self.length_penalty, self.max_tokens, self.eos)
        options = {"do_sample": True, "num_return_sequences": self.samples, "seed": self.seed}
        # Without them other libraries would use values of their own.
        return {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | common | options
