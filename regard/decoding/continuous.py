"""Continuous batching: prompts are added to a batch, and removed, between the steps of the others.

    batch = ContinuousBatch(model)
    first = batch.join(ids, options(max_tokens=40))
    while batch:
        for continuation, results in batch.advance():
            ...

(Yu et al. 2022, "Orca: a distributed serving system for transformer-based generative models",
section 3.) A continuation has the tokens that its method gives it without the others. Prompts are
read in chunks, one between two steps, so that the others do not wait for a long one; short ones
share a chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.attention.cache import KeyValueCache, paged
from regard.data.batches import Sequences
from regard.decoding.filters import Prefix, TokenIds
from regard.decoding.length_penalty import limits
from regard.decoding.loop import (
    ActiveSequence,
    Chooser,
    Collector,
    Greedy,
    StepResult,
    TokenMethod,
    forces_end,
)
from regard.decoding.prefix_cache import PrefixCache
from regard.decoding.steps import (
    Hypothesis,
    NonFiniteStep,
    check_log_probs,
    eos_tokens,
    evaluating,
    start,
)
from regard.models.protocols import Generator
from regard.state import State

CHUNK = 128  # tokens of prompts that are read between two steps
FIRST_CHUNK = 512  # where at least as many prompts wait to be read as sequences are generated


@dataclass(eq=False)
class Continuation:
    """A prompt in a batch, and what has been generated after it.

    rows: its sequences that have not ended (several where samples are drawn).
    count: tokens generated of each of them.
    tokens: (B, T) prompt and generated tokens of these; empty where no filter reads them.
    """

    prompt: list[int]
    method: TokenMethod
    limit: int
    eos: TokenIds
    collector: Collector
    choose: Chooser
    rows: list[ActiveSequence]
    count: int = 0
    read: int = 0  # tokens of the prompt
    state: Any = None  # after these, until it joins the others
    tokens: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.long))

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """The hypotheses of the prompt; complete when all its sequences have ended."""
        return self.collector.results()[0]

    def add(self, tokens: Tensor, log_probs: Tensor) -> list[StepResult]:
        """Add the tokens (B,) of a step, with their log-probabilities (B,).

        Raises:
            NonFiniteStep: a log-probability is NaN.
        """
        ids, gains = tokens.tolist(), log_probs.tolist()
        check_log_probs(gains, len(self.prompt) + self.count)
        self.count += 1
        forced = forces_end(self.method.filters)
        if self.method.filters:  # nothing else reads them
            self.tokens = torch.cat([self.tokens, tokens[:, None]], 1)
        results = [
            sequence.add(token, gain, self.count, self.eos, forced)
            for sequence, token, gain in zip(self.rows, ids, gains, strict=True)
        ]
        self.collector.add(results)
        remaining = [index for index, result in enumerate(results) if not result.last]
        self.tokens = self.tokens[remaining] if self.method.filters else self.tokens
        self.rows = [self.rows[index] for index in remaining]
        return results

    def prefix(self) -> Prefix:
        """What filters read."""
        limit = torch.full((len(self.rows),), self.limit, device=self.tokens.device)
        return Prefix(self.tokens, self.count, self.eos, limit)


# Of each continuation that is written the results of a step, or the error that ended it.
Outcomes = list[tuple[Continuation, list[StepResult] | NonFiniteStep]]


class ContinuousBatch:
    """Prompts that a model continues together.

    reading: prompts that are not read to their end.
    writing: prompts that tokens are generated after.

    Args:
        model: a language model; or a `PrefixCache` around it.

    Raises:
        TypeError: a state of this model cannot hold sequences that have read different numbers of
            tokens.
    """

    def __init__(self, model: Generator):
        self.model = model
        model.empty(1).joined(model.empty(1))
        self.reading: list[Continuation] = []
        self.writing: list[Continuation] = []
        self._state: Any = None  # of the rows of `writing`, in their order
        self._fed: Tensor | None = None  # (B, 1)

    def __len__(self) -> int:
        return len(self.reading) + len(self.writing)

    @property
    def rows(self) -> int:
        """B, the number of sequences that are generated."""
        return sum(len(continuation.rows) for continuation in self.writing)

    @torch.no_grad()
    def join(self, prompt: Sequence[int], method: TokenMethod) -> Continuation:
        """Add a prompt, which may be empty, to the batch.

        Raises:
            ConfigError: the prompt is longer than the model's context.
        """
        source = Sequences.of([list(prompt)], self.model.config.pad)
        limit = limits(method.max_tokens, self.model, source, 1).repeat(method.copies)
        ids = list(prompt) or [self.model.first_token]
        rows = [
            ActiveSequence(row, int(limit[0]), watchers=method.watchers(prompt))
            for row in range(method.copies)
        ]
        continuation = Continuation(
            ids,
            method,
            int(limit[0]),
            eos_tokens(method.eos, self.model),
            method.collector(self.model),
            method.chooser(source, limit),
            rows,
        )
        self.reading.append(continuation)
        return continuation

    def leave(self, continuation: Continuation) -> None:
        """Remove a continuation from the batch before it has ended."""
        if continuation in self.reading:
            self.reading.remove(continuation)
        if continuation in self.writing:
            keep = [other is not continuation for other in self.writing for _ in other.rows]
            self.writing.remove(continuation)
            self._keep(keep)

    @torch.no_grad()
    def advance(self) -> Outcomes:
        """Read a chunk of prompts, then generate the next token of each sequence.

        Returns:
            For each continuation that is written the results of the step, or the error that ended
            it.
        """
        with evaluating(self.model):
            if self.reading:
                self._read()
            return self._step() if self.writing else []

    # ---- prompts

    def _read(self) -> None:
        """Read several whole prompts if they fit into a chunk, else a chunk of the first one."""
        short = self._short_prompts(CHUNK if self.rows > len(self.reading) else FIRST_CHUNK)
        if len(short) > 1:
            self._read_together(short)
        else:
            self._read_chunk(self.reading[0])

    def _short_prompts(self, budget: int) -> list[Continuation]:
        """The first prompts that are not begun, as many as have, padded to the longest of them, at
        most `budget` tokens.
        """
        longest, short = 1, list[Continuation]()
        for prompt in self.reading:
            longest = max(longest, len(prompt.prompt) - 1)
            if prompt.read or longest * (len(short) + 1) > budget:
                break
            short.append(prompt)
        return short

    def _read_together(self, short: list[Continuation]) -> None:
        """Read whole prompts in one batch."""
        prompts = Sequences.of([prompt.prompt for prompt in short], self.model.config.pad)
        device = next(iter(self.model.empty(1).tensors().values())).device
        state, _ = start(self.model, prompts.to(device))
        self._join(short, state)

    def _read_chunk(self, prompt: Continuation) -> None:
        """Read a chunk of a prompt; after the last chunk its sequences join the others.

        The first chunk has all tokens that a prefix cache copies, and `CHUNK` more.
        """
        ids, cache, begin = prompt.prompt[:-1], self.model, prompt.read
        if prompt.state is None:
            prompt.state = self.model.empty(1).expect_tokens(len(ids) + min(prompt.limit, CHUNK))
            if isinstance(cache, PrefixCache):
                begin = cache.cached_length(ids, prompt.state)
        end = min(len(ids), begin + CHUNK)
        if prompt.read and isinstance(cache, PrefixCache):
            prompt.state = cache.extend(ids[:end], prompt.state)
        elif end:
            device = next(iter(prompt.state.tensors().values())).device
            tokens = torch.tensor([ids[prompt.read : end]], device=device)  # (1, T)
            prompt.state = self.model.prefill(tokens, prompt.state)
        prompt.read = end
        if end == len(ids):
            state, prompt.state = prompt.state, None
            self._join([prompt], state)

    def _join(self, ready: list[Continuation], state: State) -> None:
        """Start to generate after prompts that were read.

        state: has a row for each of them.
        """
        device = next(iter(state.tensors().values())).device
        copies = torch.tensor([len(prompt.rows) for prompt in ready], device=device)
        rows = torch.arange(len(ready), device=device).repeat_interleave(copies)
        if len(rows) > len(ready):
            state = state.select(rows)
        last = torch.tensor([[prompt.prompt[-1]] for prompt in ready], device=device)[rows]
        for prompt in ready:
            if prompt.method.filters:
                prompt.tokens = torch.tensor([prompt.prompt] * len(prompt.rows), device=device)
            self.reading.remove(prompt)
        self.writing += ready
        self._state = paged(state) if self._state is None else self._state.joined(state)
        self._fed = last if self._fed is None else torch.cat([self._fed, last])
        longest = max(continuation.limit - continuation.count for continuation in self.writing)
        self._state = self._state.expect_tokens(min(longest, CHUNK))

    # ---- steps

    def _step(self) -> Outcomes:
        """Generate the next token of each sequence; see `advance`."""
        assert self._fed is not None
        scores, self._state = self.model.step(self._fed, self._state)
        tokens, log_probs = self._chosen(scores[:, -1])  # (B, 1, V) -> (B, V)
        self._fed = tokens[:, None].contiguous()  # (B,) -> (B, 1)
        outcomes: Outcomes = []
        keep, start = list[bool](), 0
        for continuation in self.writing:
            part = slice(start, start + len(continuation.rows))
            start = part.stop
            try:
                results = continuation.add(tokens[part], log_probs[part])
            except NonFiniteStep as error:
                continuation.rows, size = [], len(continuation.rows)
                outcomes.append((continuation, error))
                keep += [False] * size
                continue
            outcomes.append((continuation, results))
            keep += [not result.last for result in results]
        self.writing = [continuation for continuation in self.writing if continuation.rows]
        self._keep(keep)
        return outcomes

    def _chosen(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The next tokens by the scores (B, V), and their log-probabilities, (B,) each.

        Where all is greedy search without filters, one call chooses all tokens.
        """
        methods = [continuation.method for continuation in self.writing]
        if all(isinstance(method, Greedy) and not method.filters for method in methods):
            return self.writing[0].choose(scores, self.writing[0].prefix(), torch.zeros(0))
        tokens, log_probs, start = [], [], 0
        for continuation in self.writing:
            rows = torch.tensor([row.row for row in continuation.rows], device=scores.device)
            part = scores[start : start + len(rows)]
            chosen = continuation.choose(part, continuation.prefix(), rows)
            tokens.append(chosen[0])
            log_probs.append(chosen[1])
            start += len(rows)
        return torch.cat(tokens), torch.cat(log_probs)

    def _keep(self, keep: Sequence[bool]) -> None:
        """Keep the sequences for which `keep` is True; the cache shrinks to the longest of them."""
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
