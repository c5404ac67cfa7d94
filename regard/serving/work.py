"""What a request asks of the engine: its items, their costs, and how results become an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from regard import decoding
from regard.errors import ConfigError
from regard.serving.calls import Call, continuations, decode, search
from regard.serving.requests import Decoding, Request

if TYPE_CHECKING:
    from regard.serving.generation import Generation
    from regard.serving.models import ServedModel
    from regard.tasks.language_modeling import TextGenerator
    from regard.tasks.task import Task

Chunk = Callable[[int, int, str, str | None], Any]
BYTES_OF_TOKEN = 4  # of UTF-8, about
IMAGE = 64  # tokens that an image counts
OF_DECODING = {*Decoding.model_fields} - {"model"}


@dataclass(frozen=True)
class Work:
    """See `QueuedRequest` of the engine.

    render: from the results to the body of the answer.
    chunk: of a stream, what is sent when a text has grown: the numbers of the prompt and of its
        sequence, what is new of its text, and why it ended. usage: what is sent at its end.
    """

    key: Hashable
    items: Sequence[Any]
    costs: Sequence[int]
    run: Callable[[list[Any]], Sequence[Any]]
    render: Callable[[list[Any]], Any]
    generation: Generation | None = None
    chunk: Chunk | None = None
    usage: Callable[[list[Any]], Any] | None = None


def work_maker(call: Call) -> Callable[[ServedModel, Request], Work]:
    """A function from a request to its `Work`, which calls a function of `regard.serving.calls`."""

    def work(served: ServedModel, request: Request) -> Work:
        task, items, options = served.task, request.items(), request.options()

        generation = continued(served, items, options) if call is decode else None

        def run(several: list[Any]) -> Sequence[Any]:
            if generation is None:
                return call(task, several, options)
            return continuations(task, several, options.get("stop"))

        def render(results: list[Any]) -> dict[str, Any]:
            answer = {"result": results[0]} if request.one else {"results": results}
            return {"model": served.name, **answer}

        return Work(
            (served.name, call.__name__, generation is None, json.dumps(options, sort_keys=True)),
            items,
            costs_of(task, items, options),
            run,
            render,
            generation,
        )

    return work


def search_work(served: ServedModel, request: Request) -> Work:
    """The search of the texts of a request, or of those of the index that is served.

    Raises:
        ConfigError: there are neither texts nor an index.
    """
    searched = served.index
    if "texts" in request.options():
        searched = None
    elif searched is None:
        raise ConfigError(
            "`texts` is missing: this model is served without an index (--index FOLDER)."
        )

    def best(task: Task, queries: list[Any], options: dict[str, Any]) -> Sequence[Any]:
        return search(searched or task, queries, options)

    return work_maker(best)(served, request)


def continued(
    served: ServedModel, items: Sequence[str], options: Mapping[str, Any]
) -> Generation | None:
    """How prompts are continued beside others; None where all of them are decoded at once.

    Raises:
        RegardError: a prompt is too long, or options of decoding are wrong.
    """
    if served.batch is None:
        return None
    from regard.serving.generation import Generation
    from regard.tasks.inputs import checked_texts
    from regard.tasks.prompts import fitted_prompts

    task = cast("TextGenerator", served.task)
    named = {name: value for name, value in options.items() if name != "too_long"}
    method = task.decoding_method(**named)
    ids = task.prompt_ids(checked_texts(items))
    prompts = fitted_prompts(ids, task.context, options.get("too_long", "error"), named)
    return Generation.of(served.batch, task.tokenizer, items, prompts, method)


def costs_of(task: Task, items: Sequence[Any], options: Mapping[str, Any]) -> list[int]:
    """About how many tokens are read and generated for each item.

    Raises:
        ConfigError: options of decoding are wrong.
    """
    read = [IMAGE if task.reads_images else tokens_of(item) for item in items]
    if not task.decodes:
        return read
    named = {name: value for name, value in options.items() if name in OF_DECODING}
    method = decoding.with_options(task.method, **named)
    return [count + most_generated(task, method, count) for count in read]


def most_generated(task: Task, method: Any, read: int) -> int:
    """The most tokens that are generated for a source or prompt of so many tokens."""
    from regard.decoding import RelativeLimit, TotalLimit

    limit = method.max_tokens
    if isinstance(limit, RelativeLimit):
        most = int(limit.ratio * read) + limit.plus
    else:
        most = limit.count if isinstance(limit, TotalLimit) else limit
    if (context := task.module.config.max_length) is not None:
        most = min(most, context)
    stored = method.settings()
    return most * max(stored.get("num_beams", 1), stored.get("num_return_sequences", 1))


def tokens_of(item: Any) -> int:
    """About how many tokens an item has: a text, or texts in a list or a mapping."""
    if isinstance(item, str):
        return 1 + len(item) // BYTES_OF_TOKEN if item.isascii() else 1 + _bytes(item)
    if isinstance(item, Mapping):
        return sum(map(tokens_of, item.values()))
    if isinstance(item, list | tuple):
        return sum(map(tokens_of, item))
    return 1


def _bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass")) // BYTES_OF_TOKEN
