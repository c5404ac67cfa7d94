"""Continuous batching: prompts join a batch, and leave it, between the tokens of the others.

    batch = ContinuousBatch(model)
    first = batch.join(ids, options(max_tokens=40))
    while batch:
        for continuation, results in batch.advance():
            ...

(Yu et al. 2022, "Orca: a distributed serving system for transformer-based generative models",
section 3.) A continuation has the tokens that its method gives it alone. Prompts are read in
chunks, one between two steps, so that the others do not wait for a long one; short ones share a
chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.attention.cache import KeyValueCache
from regard.attention.paged_cache import paged
from regard.data.batches import Sequences
from regard.decoding.filters import Prefix
from regard.decoding.greedy import Greedy
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.length_penalty import limits
from regard.decoding.loop import (
    ActiveSequence,
    Chooser,
    Collector,
    StepResult,
    TokenMethod,
    forces_end,
)
from regard.decoding.prefix_cache import PrefixCache
from regard.decoding.start import start
from regard.decoding.steps import NotNumbers, check, ends_of, evaluating
from regard.models.protocols import Generator

CHUNK = 128  # tokens of prompts that are read between two steps
FIRST_CHUNK = 512  # where fewer sequences wait for their next token than prompts to be read


@dataclass(eq=False)
class Continuation:
    """A prompt in a batch, and what has been generated behind it.

    rows: its sequences that have not ended.
    count: tokens that each of them has.
    """

    prompt: list[int]
    method: TokenMethod
    limit: int
    eos: tuple[int, ...]
    collector: Collector
    choose: Chooser
    rows: list[ActiveSequence]
    count: int = 0
    read: int = 0  # tokens of the prompt
    state: Any = None  # after these, until it joins the others
    tokens: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.long))

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """What its method gives; complete when all its sequences have ended."""
        return self.collector.results()[0]

    def take(self, tokens: Tensor, log_probs: Tensor) -> list[StepResult]:
        """The results of a step, tokens (R,) and their log-probabilities.

        Raises:
            NotNumbers: a log-probability is NaN.
        """
        numbers, gains = tokens.tolist(), log_probs.tolist()
        check(gains, len(self.prompt) + self.count)
        self.count += 1
        forced = forces_end(self.method.filters)
        if self.method.filters:  # nothing else reads them
            self.tokens = torch.cat([self.tokens, tokens[:, None]], 1)
        results = [
            one.take(number, gain, self.count, self.eos, forced)
            for one, number, gain in zip(self.rows, numbers, gains, strict=True)
        ]
        self.collector.add(results)
        going = [index for index, result in enumerate(results) if not result.last]
        self.tokens = self.tokens[going] if self.method.filters else self.tokens
        self.rows = [self.rows[index] for index in going]
        return results

    def prefix(self) -> Prefix:
        """What filters read."""
        limit = torch.full((len(self.rows),), self.limit, device=self.tokens.device)
        return Prefix(self.tokens, self.count, self.eos, limit)


class ContinuousBatch:
    """Prompts that a model continues together.

    Args:
        model: a language model; or a `PrefixCache` around it.

    Raises:
        TypeError: sequences of the model's states cannot join others.
    """

    def __init__(self, model: Generator):
        self.model = model
        model.empty(1).joined(model.empty(1))
        self.reading: list[Continuation] = []
        self.writing: list[Continuation] = []
        self._state: Any = None  # of the rows of `writing`, in their order
        self._fed: Tensor | None = None  # (R, 1)

    def __len__(self) -> int:
        return len(self.reading) + len(self.writing)

    @property
    def rows(self) -> int:
        """Sequences that are generated."""
        return sum(len(one.rows) for one in self.writing)

    @torch.no_grad()
    def join(self, prompt: Sequence[int], method: TokenMethod) -> Continuation:
        """Continue a prompt, which may be empty, beside the others.

        Raises:
            ConfigError: the prompt is longer than the model's context.
        """
        source = Sequences.of([list(prompt)], self.model.config.pad)
        limit = limits(method.max_tokens, self.model, source, 1).repeat(method.copies)
        ids = list(prompt) or [self.model.first_token]
        rows = [ActiveSequence(row, int(limit[0])) for row in range(method.copies)]
        continuation = Continuation(
            ids,
            method,
            int(limit[0]),
            ends_of(method.eos, self.model),
            method.collector(self.model),
            method.chooser(source, limit),
            rows,
        )
        self.reading.append(continuation)
        return continuation

    def leave(self, continuation: Continuation) -> None:
        """End a continuation before its end."""
        if continuation in self.reading:
            self.reading.remove(continuation)
        if continuation in self.writing:
            keep = [one is not continuation for one in self.writing for _ in one.rows]
            self.writing.remove(continuation)
            self._keep(keep)

    @torch.no_grad()
    def advance(self) -> list[tuple[Continuation, list[StepResult] | NotNumbers]]:
        """Read prompts, and generate a token of each sequence that has one before it.

        Of each continuation the results of the step, or the error that ended it.
        """
        with evaluating(self.model):
            if self.reading:
                self._read()
            return self._step() if self.writing else []

    # ---- prompts

    def _read(self) -> None:
        """Read a chunk of the first prompt, or all of the first prompts if they fit into it."""
        together = self._short_prompts(CHUNK if self.rows > len(self.reading) else FIRST_CHUNK)
        if len(together) > 1:
            self._read_together(together)
        else:
            self._read_chunk(self.reading[0])

    def _short_prompts(self, budget: int) -> list[Continuation]:
        """The first prompts, if none is begun, as many as have at most so many padded tokens."""
        longest, found = 1, list[Continuation]()
        for one in self.reading:
            longest = max(longest, len(one.prompt) - 1)
            if one.read or longest * (len(found) + 1) > budget:
                break
            found.append(one)
        return found

    def _read_together(self, together: list[Continuation]) -> None:
        """Read whole prompts in one batch."""
        prompts = Sequences.of([one.prompt for one in together], self.model.config.pad)
        device = next(iter(self.model.empty(1).tensors().values())).device
        state, _ = start(self.model, prompts.to(device))
        self._join(together, state)

    def _read_chunk(self, one: Continuation) -> None:
        """A chunk of a prompt; after the last one it joins the others.

        A prefix cache holds what was read before, and gives it back, so that it is asked for the
        whole beginning; else the state goes on.
        """
        whole, cached = len(one.prompt) - 1, isinstance(self.model, PrefixCache)
        end = min(whole, one.read + CHUNK)
        if one.state is None or cached:
            one.state = self.model.empty(1).expect_tokens(whole + min(one.limit, CHUNK))
        if end:
            begin = 0 if cached else one.read
            device = next(iter(one.state.tensors().values())).device
            ids = torch.tensor([one.prompt[begin:end]], device=device)
            one.state = self.model.prefill(ids, one.state)
        one.read = end
        if end == whole:
            state, one.state = one.state, None
            self._join([one], state)

    def _join(self, ready: list[Continuation], state: Any) -> None:
        """Prompts that are read, with the state of each (B rows), begin to be continued."""
        device = next(iter(state.tensors().values())).device
        copies = torch.tensor([len(one.rows) for one in ready], device=device)
        numbers = torch.arange(len(ready), device=device).repeat_interleave(copies)
        if len(numbers) > len(ready):
            state = state.select(numbers)
        last = torch.tensor([[one.prompt[-1]] for one in ready], device=device)[numbers]
        for one in ready:
            if one.method.filters:
                one.tokens = torch.tensor([one.prompt] * len(one.rows), device=device)
            self.reading.remove(one)
        self.writing += ready
        self._state = paged(state) if self._state is None else self._state.joined(state)
        self._fed = last if self._fed is None else torch.cat([self._fed, last])
        left = max(each.limit - each.count for each in self.writing)
        self._state = self._state.expect_tokens(min(left, CHUNK))

    # ---- steps

    def _step(self) -> list[tuple[Continuation, list[StepResult] | NotNumbers]]:
        assert self._fed is not None
        scores, self._state = self.model.step(self._fed, self._state)
        scores = scores[:, -1]  # (R, V)
        tokens, log_probs = self._chosen(scores)
        self._fed = tokens[:, None].contiguous()
        found: list[tuple[Continuation, list[StepResult] | NotNumbers]] = []
        keep, start = list[bool](), 0
        for one in self.writing:
            part = slice(start, start + len(one.rows))
            start = part.stop
            try:
                results = one.take(tokens[part], log_probs[part])
            except NotNumbers as error:
                one.rows, size = [], len(one.rows)
                found.append((one, error))
                keep += [False] * size
                continue
            found.append((one, results))
            keep += [not result.last for result in results]
        self.writing = [one for one in self.writing if one.rows]
        self._keep(keep)
        return found

    def _chosen(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens of all rows and their log-probabilities, (R,) each.

        Rows of greedy search without filters are chosen in one call.
        """
        plain = [isinstance(one.method, Greedy) and not one.method.filters for one in self.writing]
        if all(plain):
            return self.writing[0].choose(scores, self.writing[0].prefix(), torch.zeros(0))
        parts, start = [], 0
        for one in self.writing:
            count = len(one.rows)
            numbers = torch.tensor([row.row for row in one.rows], device=scores.device)
            part = scores[start : start + count]
            parts.append(one.choose(part, one.prefix(), numbers))
            start += count
        tokens, log_probs = (torch.cat([part[side] for part in parts]) for side in (0, 1))
        return tokens, log_probs

    def _keep(self, keep: Sequence[bool]) -> None:
        """Keep some of the rows; memory behind the longest of them is not read any more."""
        if all(keep):
            return
        if not any(keep):
            self._state = self._fed = None
            return
        assert self._fed is not None
        rows = torch.tensor(keep, device=self._fed.device).nonzero()[:, 0]
        self._fed, self._state = self._fed[rows], self._state.select(rows)
        if isinstance(self._state, KeyValueCache):
            self._state = self._state.truncate(self._state.lengths)
