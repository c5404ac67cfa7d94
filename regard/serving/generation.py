"""Prompts that are continued together, and their texts as they grow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from regard.decoding.continuous import Continuation, ContinuousBatch
from regard.decoding.loop import StepResult, TokenMethod
from regard.decoding.steps import NonFiniteStep
from regard.decoding.streaming import GeneratedText
from regard.models.protocols import Generator
from regard.serving.counters import RequestCounters
from regard.tasks.finite_checks import not_finite_error
from regard.text import Tokenizer

MOST_ROWS = 64  # sequences of a batch; the others wait
# The numbers of a prompt and of its sequence, and the text, which has grown or ended.
Listener = Callable[[int, int, GeneratedText], None]


@dataclass(frozen=True, eq=False)
class Continued:
    """A prompt as the request has it, its ids, and the texts that continue it."""

    source: Any
    prompt: list[int]
    texts: list[GeneratedText]
    continuation: Continuation


class ServedBatch:
    """The continuous batch of a model, for all requests to it.

    Raises:
        TypeError: sequences of the model's states cannot join others.
    """

    def __init__(self, name: str, model: Generator, counters: RequestCounters):
        self.name, self.counters = name, counters
        self.sequences = ContinuousBatch(model)
        self._owners: dict[Continuation, tuple[Generation, int]] = {}

    def join(self, owner: Generation, number: int) -> bool:
        """Continue a prompt of a request, if there is room."""
        rows = self.sequences.rows + sum(len(one.rows) for one in self.sequences.reading)
        if rows and rows + owner.method.copies > MOST_ROWS:
            return False
        continuation = self.sequences.join(owner.prompts[number], owner.method)
        self._owners[continuation] = owner, number
        owner.joined.append(continuation)
        return True

    def leave(self, continuation: Continuation) -> None:
        """End a continuation before its end."""
        if self._owners.pop(continuation, None) is not None:
            self.sequences.leave(continuation)

    def fail(self, error: Exception) -> None:
        """End all requests with an error that is not about one of them."""
        owners, self._owners = self._owners, {}
        for owner, _ in owners.values():
            owner.error = error
        self.sequences = ContinuousBatch(self.sequences.model)

    def advance(self) -> int:
        """A token of every sequence, and a chunk of a prompt; how many tokens were generated."""
        count = 0
        for continuation, results in self.sequences.advance():
            owner, number = self._owners[continuation]
            if isinstance(results, NonFiniteStep):
                owner.error = not_finite_error(number, "scores")
                self._owners.pop(continuation)
                continue
            count += len(results)
            owner.take(number, results)
            if not continuation.rows:
                self._owners.pop(continuation)
            elif owner.ended(number):
                self.leave(continuation)
        self.counters.tokens.labels(self.name).inc(count)
        return count


class Generation:
    """The prompts of a request, continued by one method.

    listener: is called in the engine's thread when a text has grown.

    Args:
        sources: the prompts as the request has them; prompts: their ids.
        new_text: makes an empty text for the ids of a prompt.
    """

    @classmethod
    def of(
        cls,
        batch: ServedBatch | None,
        tokenizer: Tokenizer,
        sources: Sequence[Any],
        prompts: Sequence[list[int]],
        method: Any,
        stops: Sequence[str] = (),
    ) -> Self | None:
        """The prompts in a batch; None where there is no batch, or the method is beam search."""
        if batch is None or not isinstance(method, TokenMethod):
            return None

        def new_text(ids: list[int]) -> GeneratedText:
            return GeneratedText(tokenizer, ids, stops)

        return cls(batch, sources, prompts, method, new_text)

    def __init__(
        self,
        batch: ServedBatch,
        sources: Sequence[Any],
        prompts: Sequence[list[int]],
        method: TokenMethod,
        new_text: Callable[[list[int]], GeneratedText],
    ):
        self.batch, self.sources, self.prompts, self.method = batch, sources, prompts, method
        self.new_text = new_text
        self.texts: list[list[GeneratedText]] = []  # of the prompts that have joined the batch
        self.listener: Listener | None = None
        self.joined: list[Continuation] = []
        self.error: Exception | None = None
        self._waiting = deque(range(len(prompts)))

    @property
    def waits(self) -> bool:
        """Whether a prompt has not joined the batch."""
        return bool(self._waiting) and self.error is None

    def join(self) -> bool:
        """Continue the next prompt; False where the batch has no room."""
        try:
            number = self._waiting[0]
            if not self.batch.join(self, number):
                return False
            ids = self.prompts[number]
            self.texts.append([self.new_text(ids) for _ in range(self.method.copies)])
        except Exception as error:
            self.error = error
        self._waiting.popleft()
        return True

    def take(self, number: int, results: Sequence[StepResult]) -> None:
        """The tokens of a step for the sequences of a prompt."""
        eos = self.joined[number].eos
        for result in results:
            text = self.texts[number][result.row]
            if text.ended:
                continue
            text.log_prob = result.log_prob
            if result.token is not None and result.token not in eos:
                text.add(result.token)
            if result.last:
                ended = result.token in eos and not result.forced
                text.end(result.token if ended else None)
            if self.listener is not None:
                self.listener(number, result.row, text)

    def ended(self, number: int) -> bool:
        """Whether all texts of a prompt have ended."""
        return all(text.ended for text in self.texts[number])

    @property
    def complete(self) -> bool:
        """Whether all texts have ended."""
        return not self._waiting and all(map(self.ended, range(len(self.prompts))))

    def results(self) -> list[Continued]:
        """The prompts with their texts."""
        return [
            Continued(*all_of_it)
            for all_of_it in zip(self.sources, self.prompts, self.texts, self.joined, strict=True)
        ]

    def leave(self) -> None:
        """Remove all prompts from the batch."""
        self._waiting.clear()
        for continuation in self.joined:
            self.batch.leave(continuation)
