"""The models of a server, and the prompts that each of them continues together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from regard.decoding.continuous import Continuation, ContinuousBatch
from regard.decoding.loop import StepResult, TokenMethod
from regard.decoding.steps import NonFiniteStep
from regard.decoding.streaming import GeneratedText
from regard.errors import ConfigError
from regard.models.protocols import Generator
from regard.serving.problems import Problem, named
from regard.tasks.batching import not_finite_error
from regard.tasks.task import Task
from regard.text import Tokenizer

if TYPE_CHECKING:
    from regard.tasks.search_index import SearchIndex


class RequestCounters:
    """The counters of a server; threads share them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Answered requests", "path", "status")
        self.seconds = self._counter(
            "request_seconds", "Time of requests from arrival to the end of the answer", "path"
        )
        self.items = self._counter("items", "Texts, prompts and images that were computed", "path")
        self.calls = self._counter("calls", "Calls of models, for one or several requests", "path")
        self.tokens = self._counter(
            "generated_tokens", "Tokens generated in continuous batches", "model"
        )

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        text = f"{about}, by {' and '.join(labels)}."
        return Counter(f"regard_{name}", text, labels, registry=self.registry)

    def watch(self, tokens: Callable[[], float], requests: Callable[[], float]) -> None:
        """Show what waits in the queue, as these functions give it."""
        waiting = "that wait or are computed"
        for name, function in ("tokens", tokens), ("requests", requests):
            about = f"{name.capitalize()} {waiting}."
            gauge = Gauge(f"regard_waiting_{name}", about, registry=self.registry)
            gauge.set_function(function)


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

    def advance(self) -> None:
        """A token of every sequence, and a chunk of a prompt."""
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


class Generation:
    """The prompts of a request, continued by one method.

    listener: is called in the engine's thread when a text has grown.

    Args:
        sources: the prompts as the request has them; prompts: their ids.
        stops: texts that end a continuation.
    """

    def __init__(
        self,
        batch: ServedBatch,
        sources: Sequence[Any],
        prompts: Sequence[list[int]],
        method: TokenMethod,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
    ):
        self.batch, self.sources, self.prompts, self.method = batch, sources, prompts, method
        self.tokenizer, self.stops = tokenizer, stops
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
            self.texts.append(
                [GeneratedText(self.tokenizer, ids, self.stops) for _ in range(self.method.copies)]
            )
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


# ---- models


def named_folders(models: Sequence[str]) -> dict[str, Path]:
    """The folders of models by name.

    models: FOLDER, whose name is that of the model, or NAME=FOLDER.

    Raises:
        ConfigError: two have the same name, or one has none.
    """
    folders: dict[str, Path] = {}
    for text in models:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            name, path = "", text
        folder = Path(path)
        name = name or folder.name or folder.resolve().name
        if name in folders:
            raise ConfigError(
                f"{folders[name]} and {folder} would both be served as {name!r}. Give one "
                f"another name: NAME={folder}."
            )
        folders[name] = folder
    return folders


@dataclass(frozen=True)
class ServedModel:
    """A model under its name.

    index: the texts that its route /search searches; None: each request has its texts.
    batch: where its prompts are continued together; None: its task continues none, or its states
        do not join others.
    created: when it was loaded, in seconds since 1970.
    """

    name: str
    task: Task
    batch: ServedBatch | None = None
    index: SearchIndex | None = None
    created: int = field(default_factory=lambda: int(time.time()))


def generation_of(
    served: ServedModel,
    sources: Sequence[Any],
    prompts: Sequence[list[int]],
    method: Any,
    stops: Sequence[str] = (),
) -> Generation | None:
    """The prompts in the batch of a model; None where it has none, or the method is beam search."""
    if served.batch is None or not isinstance(method, TokenMethod):
        return None
    return Generation(served.batch, sources, prompts, method, served.task.tokenizer, stops)


class ServedModels:
    """The models that requests name."""

    def __init__(self, models: Mapping[str, ServedModel]):
        self.all = dict(models)

    def named(self, name: str | None) -> ServedModel:
        """The model of this name; without a name the only one.

        Raises:
            Problem: 404 where there is none of this name; 400 where one must be named.
        """
        if name is None:
            if len(self.all) != 1:
                message = f"`model` must name one of the models: {', '.join(self.all)}."
                raise Problem(400, message, "model_missing", "model")
            return next(iter(self.all.values()))
        return named(self.all, name)


def served_model(
    name: str, loaded: Task | SearchIndex, counters: RequestCounters, prefix_bytes: int = 0
) -> ServedModel:
    """A model under a name, or an index with its model.

    prefix_bytes: of cached keys and values of prompt prefixes; 0: none.
    """
    if not isinstance(loaded, Task):
        return ServedModel(name, loaded.model, index=loaded)
    task = loaded
    if not task.has("cache_prefixes") or task.module.reads_backward:
        return ServedModel(name, task)

    if prefix_bytes:
        with suppress(ConfigError):  # a model without keys and values
            task.cache_prefixes(prefix_bytes)
    try:
        return ServedModel(name, task, ServedBatch(name, task.generator, counters))
    except TypeError:  # its states do not join others
        return ServedModel(name, task)


def tokenizer_info(name: str, task: Task) -> dict[str, Any]:
    """The kind and the size of a model's tokenizer, and its special tokens under the names that
    vLLM's `/tokenizer_info` has for them.
    """
    tokenizer = task.tokenizer
    special = {
        f"{role}_token": tokenizer.roles.get(role) for role in ("bos", "eos", "pad", "unk", "mask")
    }
    return {
        "model": name,
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "max_length": task.module.config.max_length,
        **special,
    }
