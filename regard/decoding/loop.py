"""Greedy search and sampling, one token of each sequence at every step, and speculative decoding.

    Speculative(Sampling((TopK(40),)), 4)

There a draft proposes some tokens, and the model checks them all in one step. Reading a few tokens
takes a model little longer than reading one, since the time goes into moving its weights. Drafted
tokens are accepted up to the first that the model rejects; that one is replaced, and the rest is
dropped: each step gives at least one token (Leviathan et al. 2023, Chen et al. 2023).

The draft is the text itself: what followed when its last three tokens, or two, occurred before, in
the prompt, the source or the generated text (Saxena 2023, "Prompt lookup decoding"). It pays where
a text repeats itself or its source: code, corrections, summaries, answers about a document. The
tokens are those that the method gives without a draft.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding.filters import NEG_INF, Filter, ForcedEnd, Prefix, Renormalize, TokenIds, apply
from regard.decoding.length_penalty import LengthPenalty, Limit, Power, limits
from regard.decoding.option_types import LOOKUP, NAMES, check
from regard.decoding.ranking import Draw, row_seeds, run_compiled_search
from regard.decoding.settings import (
    METHOD_OPTIONS,
    Settings,
    check_common,
    check_no_sampling,
    common_settings,
)
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
from regard.errors import ConfigError
from regard.models.protocols import Generator
from regard.models.wrappers import unwrapped
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


class IncrementalMethod(ABC):
    """A method that decides one token after another, so that its text can be streamed."""

    @property
    @abstractmethod
    def max_tokens(self) -> Limit:
        """How many tokens may be generated."""

    @abstractmethod
    def steps(self, model: Generator, source: Sequences | None) -> Iterator[StepResults]:
        """The tokens that each step of the model decides; `source`: see `run`."""

    @abstractmethod
    def collector(self, model: Generator) -> Collector:
        """What turns the results of the steps into hypotheses."""

    def run(self, model: Generator, source: Sequences | None) -> Hypotheses:
        """The hypotheses of each source.

        Args:
            source: the sources to answer or prompts to continue; None: one empty prompt.
        """
        return self.collected(model, self.steps(model, source))

    def collected(self, model: Generator, steps: Iterable[StepResults]) -> Hypotheses:
        """The hypotheses that the results of all steps make."""
        collector = self.collector(model)
        for results in steps:
            collector.add(results)
        return collector.results()


class TokenMethod(IncrementalMethod):
    """Greedy search or sampling: each step of the model decides one token of each sequence.

    length_penalty: divides the log-probability in the score that is reported.
    filters: what may come next.
    eos: the tokens that end a sequence; None: the model's own.
    ends: further rules that end a sequence.
    """

    length_penalty: LengthPenalty
    filters: tuple[Filter, ...]
    eos: TokenIds | None
    ends: tuple[EndRule, ...]

    @property
    def copies(self) -> int:
        """Sequences for each source."""
        return 1

    def watchers(self, prompt: Sequence[int]) -> list[Watcher]:
        """What is called with each token of a sequence after this prompt."""
        return [rule(prompt) for rule in self.ends]

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

    def run(self, model: Generator, source: Sequences | None) -> Hypotheses:
        """One hypothesis for each source."""
        with torch.no_grad(), evaluating(model):
            started = start_decoding(model, source)
            compiled = self._compiled(model, source, started)
        if compiled is not None:
            return compiled
        return self.collected(model, self.steps(model, source, started))

    def _compiled(
        self, model: Generator, source: Sequences | None, started: tuple[State, Tensor]
    ) -> Hypotheses | None:
        """The hypotheses as one compiled call finds them; None where it cannot."""
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


# --------------------------------------------------------------------------------- with a draft

NGRAM_SIZES = (3, 2)  # what followed a single token is hardly ever right
SEPARATOR = -1  # stands for a token between a source and the generated text


@dataclass(frozen=True)
class Speculative(IncrementalMethod):
    """Greedy search or sampling, with a draft of `tokens` tokens before each step of the model.

    Args:
        method: greedy search or sampling.
        tokens: how many tokens are proposed at most.

    Raises:
        ConfigError: the method is beam search, or `tokens` is below 1.
    """

    method: Greedy | Sampling = Greedy()
    tokens: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.method, Greedy | Sampling):
            raise ConfigError(f"`{LOOKUP}` is for greedy search and sampling: leave it out.")
        check(LOOKUP, self.tokens)

    @property
    def max_tokens(self) -> Limit:
        """That of the method."""
        return self.method.max_tokens

    @torch.no_grad()
    def steps(self, model: Generator, source: Sequences | None) -> Iterator[StepResults]:
        """Token by token; those of one step of the model come together.

        Raises:
            ConfigError: the model's state cannot rewind.
        """
        method, longest = self.method, model.config.max_length
        with evaluating(model):
            state, tokens = start_decoding(model, source)
            try:
                state.rewind(0)
            except TypeError:
                name = type(unwrapped(model)).__name__
                raise ConfigError(f"{name} cannot take back tokens, as `{LOOKUP}` must.") from None
            limit = limits(self.max_tokens, model, source, tokens.size(0))
            limit = limit.repeat_interleave(method.copies)
            choose, eos = method.chooser(source, limit), eos_tokens(method.eos, model)
            device = tokens.device
            sequences = _begun(model, source, self, tokens, limit)
            if method.copies > 1:
                state = state.select(torch.arange(len(sequences), device=device) // method.copies)
            while sequences:
                count = self.tokens
                if longest is not None:
                    count = min(
                        [count, *(longest - len(sequence.tokens) for sequence in sequences)]
                    )
                guesses = [
                    sequence.text.guess(min(count, sequence.active.limit - sequence.generated - 1))
                    for sequence in sequences
                ]
                width = 1 + max(map(len, guesses))
                fed = [
                    [sequence.text.tokens[-1], *guess, *[0] * (width - 1 - len(guess))]
                    for sequence, guess in zip(sequences, guesses, strict=True)
                ]
                scores, state = model.step(torch.tensor(fed, device=device), state)  # (B, width, V)
                results, decided, ended = _verified(self, choose, scores, sequences, guesses, eos)
                yield results
                rejected = torch.tensor([width - count for count in decided], device=device)
                state = state.rewind(rejected) if bool(rejected.any()) else state
                if ended:
                    remaining = [index for index in range(len(sequences)) if index not in ended]
                    sequences = [sequences[index] for index in remaining]
                    state = (
                        state.select(torch.tensor(remaining, device=device)) if remaining else state
                    )

    def collector(self, model: Generator) -> Collector:
        return self.method.collector(model)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        tokens = settings.take(LOOKUP, cls.tokens)
        has_sampling = settings.has(*(NAMES[name] for name in METHOD_OPTIONS["sampling"]))
        method = Sampling if settings.take("do_sample", has_sampling) else Greedy
        return cls(method.from_settings(settings), tokens)

    def settings(self) -> dict[str, Any]:
        return self.method.settings() | {LOOKUP: self.tokens}


class IndexedText:
    """A text with the position after the latest occurrence of each n-gram."""

    def __init__(self, tokens: Sequence[int]):
        self.tokens: list[int] = []
        self.after: dict[TokenIds, int] = {}
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        """Append a token to the text."""
        for size in NGRAM_SIZES:
            if len(self.tokens) >= size:
                self.after[tuple(self.tokens[-size:])] = len(self.tokens)
        self.tokens.append(token)

    def guess(self, count: int) -> list[int]:
        """At most `count` tokens; a guess that reaches the end of the text repeats itself."""
        positions = (self.after.get(tuple(self.tokens[-size:])) for size in NGRAM_SIZES)
        start = next((position for position in positions if position is not None), None)
        if start is None:
            return []
        period = len(self.tokens) - start
        guess = [self.tokens[start + step % period] for step in range(count)]
        return guess[: guess.index(SEPARATOR)] if SEPARATOR in guess else guess


@dataclass
class _Sequence:
    """A sequence that has not ended.

    text: its tokens, after those of the source where a model answers one.
    begin: where its first token, of the prompt or the start token, is in that text.
    generated: how many tokens were generated.
    """

    active: ActiveSequence
    text: IndexedText
    begin: int
    generated: int = 0

    @property
    def tokens(self) -> list[int]:
        return self.text.tokens[self.begin :]


def _verified(
    plan: Speculative,
    choose: Chooser,
    scores: Tensor,
    sequences: list[_Sequence],
    guesses: list[list[int]],
    eos: TokenIds,
) -> tuple[StepResults, list[int], set[int]]:
    """Add the tokens that the scores (B, J + 1, V) decide, of each sequence until a guess is wrong.

    Returns:
        The results, how many tokens of each sequence were decided, and which sequences ended.
    """
    results: StepResults = []
    decided, ended = [0] * len(sequences), set[int]()
    forced = forces_end(plan.method.filters)
    accepted = list(range(len(sequences)))  # those whose guesses were right so far
    for position in range(scores.size(1)):
        members = [sequences[index] for index in accepted]
        chosen = _chosen(plan, choose, scores[accepted, position], members, eos)
        right = []
        for index, token, log_prob in zip(accepted, *chosen, strict=True):
            sequence = sequences[index]
            sequence.text.add(token)
            sequence.generated += 1
            decided[index] += 1
            result = sequence.active.add(token, log_prob, sequence.generated, eos, forced)
            results.append(result)
            if result.last:
                ended.add(index)
            elif guesses[index][position : position + 1] == [token]:
                right.append(index)
        accepted = right
        if not accepted:
            break
    return results, decided, ended


def _begun(
    model: Generator, source: Sequences | None, plan: Speculative, tokens: Tensor, limit: Tensor
) -> list[_Sequence]:
    """The sequences, those of one source side by side, with limits (B,).

    tokens: (sources, T), the prompts or start tokens.
    """
    method, before = plan.method, [list[int]() for _ in range(tokens.size(0))]
    if source is not None and not model.continues:
        lengths = source.lengths.tolist()
        before = [
            [*ids[:n], SEPARATOR] for ids, n in zip(source.ids.tolist(), lengths, strict=True)
        ]
    rows = [[token for token in row if token >= 0] for row in tokens.tolist()]
    return [
        _Sequence(
            ActiveSequence(row, at_most, watchers=method.watchers(prompt)),
            IndexedText([*before[row // method.copies], *rows[row // method.copies]]),
            len(before[row // method.copies]),
        )
        for row, (at_most, prompt) in enumerate(
            zip(limit.tolist(), prompts_of(model, source, method.copies), strict=True)
        )
    ]


def _chosen(
    plan: Speculative,
    choose: Chooser,
    scores: Tensor,
    sequences: list[_Sequence],
    eos: TokenIds,
) -> tuple[list[int], list[float]]:
    """The next tokens of the sequences by the scores (B, V), and their log-probabilities.

    Filters and random numbers depend on how many tokens were generated: those with the same number
    are chosen together.
    """
    if isinstance(plan.method, Greedy) and not plan.method.filters:
        groups = [list(range(len(sequences)))]
    else:
        order = sorted(range(len(sequences)), key=lambda i: sequences[i].generated)
        groups = [list(g) for _, g in groupby(order, key=lambda i: sequences[i].generated)]
    tokens, log_probs = [0] * len(sequences), [0.0] * len(sequences)
    for group in groups:
        members = [sequences[index] for index in group]
        width = max(len(member.tokens) for member in members)
        padded = [[-1] * (width - len(member.tokens)) + member.tokens for member in members]
        columns = (padded, [m.active.limit for m in members], [m.active.row for m in members])
        before, at_most, rows = (torch.tensor(column, device=scores.device) for column in columns)
        prefix = Prefix(before, members[0].generated, eos, at_most)
        chosen, gains = choose(scores[group], prefix, rows)
        check_log_probs(gains.tolist(), width)
        for index, token, gain in zip(group, chosen.tolist(), gains.tolist(), strict=True):
            tokens[index], log_probs[index] = token, gain
    return tokens, log_probs
