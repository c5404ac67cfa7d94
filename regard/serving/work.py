"""What a request asks of the engine: its items, their costs, what computes them, and how results
become an answer.

What computes are functions of a task, items and options, with one plain value an item. They call
the same methods as the command line, so that the answers are the same. What some of them alone need
is imported by their first request: a server starts without it.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from regard import decoding
from regard.data.text_chunks import is_blank
from regard.errors import ConfigError, TextError
from regard.serving.problems import Problem
from regard.serving.requests import Decoding, Fields, Request, Search, Tokenize
from regard.tasks.inputs import is_single

if TYPE_CHECKING:
    from regard.decoding.steps import Hypotheses
    from regard.serving.models import Continued, Generation, ServedModel
    from regard.tasks.captioning import Captioner
    from regard.tasks.embedder import EmbedsTexts
    from regard.tasks.language_modeling import TextGenerator
    from regard.tasks.search_index import SearchIndex
    from regard.tasks.task import Task
    from regard.visual.image_regions import AttendedRegions


_IMAGE_HINT = "Give the bytes of a PNG or JPEG file in base64."
Call = Callable[["Task", list[Any], Fields], Sequence[Any]]


def predict(task: Task, items: list[Any], options: Fields) -> list[Any]:
    """The prediction for each item, as `regard predict --json` prints it.

    Raises:
        TextError: a text is blank.
    """
    for index, item in enumerate(items):
        if is_single(item) and is_blank(item):
            raise TextError(index, "is blank.", "Leave it out, or give a text.")
    predictions = task.predict(items, return_proba=True, **options)
    return [{"text": str(prediction), **prediction.values()} for prediction in predictions]


def decode(task: Task, items: list[Any], options: Fields) -> list[Any]:
    """The hypotheses of each text, as `regard predict --json` prints them."""
    return _with_texts(task, items, task.hypotheses(items, **options))


def continuations(
    task: Task, items: list[Continued], stop: Sequence[str] | str | None = None
) -> list[Any]:
    """The same, of prompts that a continuous batch has continued."""
    from regard.decoding.streaming import checked_stops

    stops = checked_stops(stop)
    hypotheses = [
        [replace(hypothesis, stops=stops) for hypothesis in item.continuation.hypotheses]
        for item in items
    ]
    return _with_texts(task, [item.source for item in items], hypotheses)


def _with_texts(task: Task, items: list[Any], decoded: Hypotheses) -> list[Any]:
    from regard.decoding.steps import values_of

    return [
        {"text": texts[0], "hypotheses": values_of(hypotheses, texts)}
        for hypotheses, texts in zip(decoded, task.spelled(items, decoded), strict=True)
    ]


def embed(task: Task, items: list[Any], options: Fields) -> list[Any]:
    """The vector of each text, or those of its words or tokens, with their labels."""
    vectors = task.embed(items, **options)
    if options.get("granularity", "sentence") == "sentence":
        return [{"vector": vector} for vector in vectors]
    return [{"labels": list(of_text.labels), "vectors": of_text} for of_text in vectors]


def search(searched: Task | SearchIndex, items: list[Any], options: Fields) -> list[Any]:
    """The best texts for each query, as `regard search --json` prints them."""
    several = searched.search(items, **options)
    return [[asdict(match) for match in matches] for matches in several]


def fill(task: Task, items: list[Any], options: Fields) -> list[Any]:
    """Each text with its masks filled, and the candidates for each mask."""
    return [filled.values() for filled in task.fill(items, **options)]


def parse(task: Task, items: list[Any], options: Fields) -> list[Any]:
    """The tree of each sentence."""
    return [{"tree": str(tree)} for tree in task.parse(items, **options)]


def score(task: Task, items: list[Any], options: Fields) -> list[Any]:
    """log p of each text, in nats."""
    return [{"log_likelihood": nats} for nats in task.log_likelihoods(items, **options)]


def attention_weights(task: Task, items: list[Any], options: Fields) -> list[Any]:
    """The attention of each text, as `regard look --json` prints it."""
    weights = []
    for index, item in enumerate(items):
        try:
            weights.append(_attention(task, item, **options))
        except TextError as error:  # of one text, which is the first one
            raise error.moved(index) from None
    return weights


def _attention(
    task: Task,
    item: Any,
    kind: str | None = None,
    layer: int | None = None,
    head: int | None = None,
    tokens: bool = False,
) -> Fields:
    from regard.visual.attention_record import attention_of_text, mean_weights

    record, answer = attention_of_text(task, item)
    heads = replace(record.plot(), tokens=tokens)
    return {"source": item, "answer": answer, **mean_weights(heads, kind, layer, head)[1]}


def caption(task: Task, items: list[Any], options: Fields) -> list[Any]:
    """The hypotheses for each image, given as the bytes of a file in base64."""
    with _files(items) as names, _without_names():
        return decode(task, names, options)


def regions_of(task: Task, items: list[Any], options: Fields) -> Iterator[AttendedRegions]:
    """The caption of each image, and where each of its words looked."""
    from regard.visual.image_regions import attended_regions

    with _files(items) as names:
        for index, name in enumerate(names):
            with _without_names(index):
                regions = attended_regions(cast("Captioner", task), name, **options)
            yield regions


def region_weights(task: Task, items: list[Any], options: Fields) -> list[Any]:
    """The same as numbers, as `regard look --regions --json` prints it."""
    return [
        {"answer": image.title, "words": list(image.words), "weights": image.weights.tolist()}
        for image in regions_of(task, items, options)
    ]


@contextmanager
def _without_names(first: int = 0) -> Iterator[None]:
    """Errors of images without the names of their temporary files.

    Args:
        first: the number of the first image.
    """
    try:
        yield
    except TextError as error:
        hint, problem = _IMAGE_HINT, "is no image that can be read."
        raise TextError(first + error.index, problem, hint, what="Image") from None


@contextmanager
def _files(images: Sequence[str]) -> Iterator[list[str]]:
    """The names of files with these images. No name comes from a client.

    Raises:
        TextError: an item is not base64.
    """
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        names = []
        for index, image in enumerate(images):
            path = Path(folder) / str(index)
            try:
                path.write_bytes(base64.b64decode(image, validate=True))
            except (binascii.Error, ValueError):
                raise TextError(index, "is not base64.", _IMAGE_HINT, what="Image") from None
            names.append(str(path))
        yield names


def tokens_of_texts(task: Task, items: list[Any], options: Fields) -> list[Any]:
    """The tokens of each text, without those that a model adds, and where each stands in it."""
    tokens = []
    for text in items:
        encoding = task.tokenizer.encode(text)
        names = [task.tokenizer.token(number) for number in encoding.ids]
        offsets = [list(both) for both in encoding.offsets]
        tokens.append({"ids": list(encoding.ids), "tokens": names, "offsets": offsets})
    return tokens


# ---- work

BYTES_OF_TOKEN = 4  # of UTF-8, about
IMAGE = 64  # tokens that an image counts
OF_DECODING = {*Decoding.model_fields} - {"model"}
# The numbers of a prompt and of its sequence, what is new of its text, and why it has ended.
Piece = tuple[int, int, str, str | None]


@dataclass(eq=False)
class Work:
    """A request in the engine.

    key: requests with the same key are computed together.
    items: what is computed; costs: the tokens of each, estimated.
    run: from some items to as many results; a TextError names one of them.
    render: from the results to the body of the answer.
    generation: the items are prompts, which it continues; then `run` gets the continuations.
    chunks: makes events of a stream: a `Body` of `regard.serving.openai`.
    path: of the request, for the counters.
    deadline: of `time.monotonic`.
    future: of the results.
    """

    key: Hashable
    items: Sequence[Any]
    costs: Sequence[int]
    run: Callable[[list[Any]], Sequence[Any]]
    render: Callable[[list[Any]], Any]
    generation: Generation | None = None
    chunks: Any = None
    path: str = ""
    deadline: float = math.inf
    future: Future[list[Any]] = field(default_factory=Future)
    results: list[Any] = field(default_factory=list)
    abandoned: bool = False  # whether nobody waits for it any more

    def __post_init__(self) -> None:
        self.cost = sum(self.costs)  # tokens of all items

    def leave_batch(self) -> None:
        """Its prompts are not continued any more."""
        if self.generation is not None:
            self.generation.leave()

    @property
    def seconds_left(self) -> float:
        """Until its deadline, at least 0."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def next_cost(self) -> int:
        """The tokens of the next item."""
        return self.costs[len(self.results)]

    def next_items(self, budget: float, limit: int) -> int:
        """How many of the next items, at most `limit`, have so many tokens; at least one."""
        start, count, tokens = len(self.results), 0, 0
        for cost in self.costs[start : start + limit]:
            tokens += cost
            if count and tokens > budget:
                break
            count += 1
        return count


def work_maker(call: Call) -> Callable[[ServedModel, Request], Work]:
    """A function from a request to its `Work`, which calls a function of `regard.serving.work`."""

    def work(served: ServedModel, request: Request) -> Work:
        task, items, options = served.task, request.items(), request.options()

        costs = costs_of(task, items, options)
        size = answer_size(call.__name__, task, items, costs, options)
        check_answer_size(size, "Send fewer texts, or ask for less of each.")
        beside_others = call is decode and "window" not in options
        generation = continued(served, items, options) if beside_others else None

        def run(several: list[Any]) -> Sequence[Any]:
            if generation is None:
                return call(task, several, options)
            return continuations(task, several, options.get("stop"))

        def render(results: list[Any]) -> Fields:
            answer = {"result": results[0]} if request.one else {"results": results}
            return {"model": served.name, **answer}

        return Work(
            (served.name, call.__name__, generation is None, json.dumps(options, sort_keys=True)),
            items,
            costs,
            run,
            render,
            generation,
        )

    return work


def search_work(served: ServedModel, request: Search) -> Work:
    """The search of the texts of a request, or of those of the index that is served.

    Raises:
        ConfigError: there are neither texts nor an index.
    """
    searched = served.index
    if request.texts is not None:
        searched = None
    elif searched is None:
        raise ConfigError("`texts` is missing, and there is no index (--index FOLDER).")

    def best(task: Task, queries: list[Any], options: Fields) -> Sequence[Any]:
        return search(searched or task, queries, options)

    return work_maker(best)(served, request)


def tokenize(served: ServedModel, request: Tokenize) -> Work:
    """The tokens of texts, or the ids of a prompt.

    Raises:
        ConfigError: neither is given, or both.
    """
    work = work_maker(tokens_of_texts)(served, request)
    if (prompt := request.prompt) is None:
        return work
    roles, id_of = served.task.tokenizer.roles, served.task.tokenizer.id

    def render(results: list[Any]) -> Fields:
        # Clients of vLLM ask so for the ids of the tokens that `/tokenizer_info` names.
        ids = [id_of(prompt)] if prompt in roles.values() else results[0]["ids"]
        return {"count": len(ids), "tokens": ids}

    return replace(work, render=render)


def continued(
    served: ServedModel, items: Sequence[str], options: Mapping[str, Any]
) -> Generation | None:
    """How prompts are continued beside others; None where all of them are decoded at once.

    Raises:
        RegardError: a prompt is too long, or options of decoding are wrong.
    """
    if served.batch is None:
        return None
    from regard.serving.models import generation_of
    from regard.tasks.inputs import checked_texts

    task = cast("TextGenerator", served.task)
    named = {name: value for name, value in options.items() if name != "too_long"}
    method = task.decoding_method(**named)
    ids = task.prompt_ids(checked_texts(items))
    prompts = task.fitted(ids, options["too_long"], False, named)
    return generation_of(served, items, prompts, method)


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
        tokens = int(limit.ratio * read) + limit.plus
    else:
        tokens = limit.count if isinstance(limit, TotalLimit) else limit
    if (context := task.module.config.max_length) is not None:
        tokens = min(tokens, context)
    stored = method.settings()
    return tokens * max(stored.get("num_beams", 1), stored.get("num_return_sequences", 1))


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


MOST_BYTES = 64 * 2**20
NUMBER = 20  # bytes of a number in JSON, about; a score with its label has two
OF_INDEX = 200  # characters of a text of an index
REGIONS = 200 * 40  # of an image, for the words of its caption


def check_answer_size(size: float, shorter: str) -> None:
    """Check the size of an answer, in bytes.

    shorter: what the client can do.

    Raises:
        Problem: 413, it is too large.
    """
    if size > MOST_BYTES:
        message = (
            f"The answer would have about {size / 2**20:,.0f} MiB, but answers have at most "
            f"{MOST_BYTES // 2**20}. {shorter}"
        )
        raise Problem(413, message, "answer_too_large")


def answer_size(
    name: str, task: Task, items: Sequence[Any], read: Sequence[int], options: Mapping[str, Any]
) -> float:
    """The bytes of the answer of a function of `regard.serving.work`, estimated.

    read: tokens of each item.
    """
    count = len(items)
    if name == "embed":
        return NUMBER * _vector_width(task, options) * _vectors(read, options)
    if name == "predict":
        return NUMBER * 2 * count * max(len(task.labels), options.get("n_best", 1))
    if name == "best":
        texts = options.get("texts") or [""]
        length = 3 * NUMBER + (sum(map(len, texts)) / len(texts) or OF_INDEX)
        return length * count * options["top_k"]
    if name == "fill":
        return NUMBER * 4 * sum(read) * options["top"]
    if name == "attention_weights":
        return NUMBER * sum(tokens * tokens for tokens in read)
    if name == "region_weights":
        return NUMBER * count * REGIONS
    return 0.0


def _vector_width(task: Task, options: Mapping[str, Any]) -> int:
    from regard.tasks.embedder import VectorBatches

    named = {name: value for name, value in options.items() if name != "too_long"}
    encoder = cast("EmbedsTexts", task).text_encoder()
    return VectorBatches.of(encoder, **named).width  # type: ignore[arg-type]


def _vectors(read: Sequence[int], options: Mapping[str, Any]) -> int:
    """How many vectors: of texts, or of words and tokens, of which short ones are letters."""
    whole = options.get("granularity", "sentence") == "sentence"
    return len(read) if whole else 2 * sum(read)
