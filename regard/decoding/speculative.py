"""Speculative decoding: a draft proposes some tokens, the model checks them all in one step.

    Speculative(Sampling((TopK(40),)), 4)

Reading a few tokens takes a model little longer than reading one, since the time goes into moving
its weights. Drafted tokens are accepted up to the first that the model rejects; that one is
replaced, and the rest is dropped: each step gives at least one token (Leviathan et al. 2023, Chen
et al. 2023).

The draft is the text itself: what followed when its last three tokens, or two, occurred before, in
the prompt, the source or the generated text (Saxena 2023, "Prompt lookup decoding"). It pays where
a text repeats itself or its source: code, corrections, summaries, answers about a document. The
tokens are those that the method gives without a draft.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding.filters import Prefix
from regard.decoding.length_penalty import Limit, limits
from regard.decoding.loop import (
    ActiveSequence,
    Chooser,
    Collector,
    Greedy,
    IncrementalMethod,
    Sampling,
    StepResult,
    forces_end,
    prompts_of,
)
from regard.decoding.option_types import LOOKUP, NAMES
from regard.decoding.option_types import check as check_option
from regard.decoding.settings import METHOD_OPTIONS, Settings
from regard.decoding.steps import check_log_probs, eos_tokens, evaluating, start_decoding
from regard.errors import ConfigError
from regard.models.protocols import Generator
from regard.models.wrappers import unwrapped

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
            raise ConfigError(
                "A draft makes greedy search and sampling faster, but the method is "
                f"{type(self.method).__name__}. Leave the draft out, or decode greedily."
            )
        check_option(LOOKUP, self.tokens)

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
        self.after: dict[tuple[int, ...], int] = {}
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


@torch.no_grad()
def speculate(
    model: Generator, source: Sequences | None, plan: Speculative
) -> Iterator[list[StepResult]]:
    """The results of each step of the model for the sequences that have not ended.

    Args:
        source: sources or prompts; None: one empty prompt.
        plan: the method, and how many tokens are proposed.

    Raises:
        ConfigError: the model's state cannot rewind.
    """
    method, longest = plan.method, model.config.max_length
    with evaluating(model):
        state, tokens = start_decoding(model, source)
        try:
            state.rewind(0)
        except TypeError:
            raise ConfigError(
                f"Speculative decoding (`{LOOKUP}`) must take back tokens that were guessed wrong, "
                f"which {type(unwrapped(model)).__name__} cannot. Leave it out."
            ) from None
        limit = limits(plan.max_tokens, model, source, tokens.size(0))
        limit = limit.repeat_interleave(method.copies)
        choose, eos = method.chooser(source, limit), eos_tokens(method.eos, model)
        device = tokens.device
        sequences = _begun(model, source, plan, tokens, limit)
        if method.copies > 1:
            state = state.select(torch.arange(len(sequences), device=device) // method.copies)
        while sequences:
            count = plan.tokens
            if longest is not None:
                count = min([count, *(longest - len(sequence.tokens) for sequence in sequences)])
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
            results, decided, ended = _verified(plan, choose, scores, sequences, guesses, eos)
            yield results
            rejected = torch.tensor([width - count for count in decided], device=device)
            state = state.rewind(rejected) if bool(rejected.any()) else state
            if ended:
                remaining = [index for index in range(len(sequences)) if index not in ended]
                sequences = [sequences[index] for index in remaining]
                state = state.select(torch.tensor(remaining, device=device)) if remaining else state


def _verified(
    plan: Speculative,
    choose: Chooser,
    scores: Tensor,
    sequences: list[_Sequence],
    guesses: list[list[int]],
    eos: tuple[int, ...],
) -> tuple[list[StepResult], list[int], set[int]]:
    """Add the tokens that the scores (B, J + 1, V) decide, of each sequence until a guess is wrong.

    Returns:
        The results, how many tokens of each sequence were decided, and which sequences ended.
    """
    results: list[StepResult] = []
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
    eos: tuple[int, ...],
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
