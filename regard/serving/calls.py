"""What answers requests: functions of a task, items and options, with one plain value an item.

They call the same methods as the command line, so that the answers are the same. What some of them
alone need is imported by their first request: a server starts without it.
"""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from regard.errors import TextError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from regard.decoding.hypothesis import Hypothesis
    from regard.serving.generation import Continued
    from regard.tasks.captioning import Captioner
    from regard.tasks.search_index import SearchIndex
    from regard.tasks.task import Task
    from regard.visual.image_regions import AttendedRegions

_IMAGE_HINT = "Give the bytes of a PNG or JPEG file in base64."
Call = Callable[["Task", list[Any], dict[str, Any]], Sequence[Any]]


def predict(task: Task, items: list[Any], options: dict[str, Any]) -> list[Any]:
    """The prediction for each item, as `regard predict --json` prints it."""
    predictions = task.predict(items, return_proba=True, **options)
    return [{"text": str(prediction), **prediction.values()} for prediction in predictions]


def decode(task: Task, items: list[Any], options: dict[str, Any]) -> list[Any]:
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


def _with_texts(task: Task, items: list[Any], decoded: list[list[Hypothesis]]) -> list[Any]:
    from regard.decoding.hypothesis import values_of

    return [
        {"text": texts[0], "hypotheses": values_of(hypotheses, texts)}
        for hypotheses, texts in zip(decoded, task.spelled(items, decoded), strict=True)
    ]


def embed(task: Task, items: list[Any], options: dict[str, Any]) -> list[Any]:
    """The vector of each text, or those of its words or tokens, with their labels."""
    vectors = task.embed(items, **options)
    if options.get("granularity", "sentence") == "sentence":
        return [{"vector": vector} for vector in vectors]
    return [{"labels": list(of_text.labels), "vectors": of_text} for of_text in vectors]


def search(searched: Task | SearchIndex, items: list[Any], options: dict[str, Any]) -> list[Any]:
    """The best texts for each query, as `regard search --json` prints them."""
    several = searched.search(items, **options)
    return [[asdict(match) for match in matches] for matches in several]


def fill(task: Task, items: list[Any], options: dict[str, Any]) -> list[Any]:
    """Each text with its masks filled, and the candidates for each mask."""
    return [filled.values() for filled in task.fill(items, **options)]


def parse(task: Task, items: list[Any], options: dict[str, Any]) -> list[Any]:
    """The tree of each sentence."""
    return [{"tree": str(tree)} for tree in task.parse(items, **options)]


def score(task: Task, items: list[Any], options: dict[str, Any]) -> list[Any]:
    """log p of each text, in nats."""
    return [{"log_likelihood": nats} for nats in task.log_likelihoods(items, **options)]


def attention_weights(task: Task, items: list[Any], options: dict[str, Any]) -> list[Any]:
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
) -> dict[str, Any]:
    from regard.visual.attention_record import attention_of_text, mean_weights

    record, answer = attention_of_text(task, item)
    heads = replace(record.plot(), tokens=tokens)
    return {"source": item, "answer": answer, **mean_weights(heads, kind, layer, head)[1]}


def caption(task: Task, items: list[Any], options: dict[str, Any]) -> list[Any]:
    """The hypotheses for each image, given as the bytes of a file in base64."""
    with _files(items) as names, _without_names():
        return decode(task, names, options)


def regions_of(task: Task, items: list[Any], options: dict[str, Any]) -> Iterator[AttendedRegions]:
    """The caption of each image, and where each of its words looked."""
    from regard.visual.image_regions import attended_regions

    with _files(items) as names:
        for index, name in enumerate(names):
            with _without_names(index):
                regions = attended_regions(cast("Captioner", task), name, **options)
            yield regions


def region_weights(task: Task, items: list[Any], options: dict[str, Any]) -> list[Any]:
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


def tokens_of_texts(task: Task, items: list[Any], options: dict[str, Any]) -> list[Any]:
    """The tokens of each text, without those that a model adds, and where each stands in it."""
    tokens = []
    for text in items:
        encoding = task.tokenizer.encode(text)
        names = [task.tokenizer.token(number) for number in encoding.ids]
        offsets = [list(both) for both in encoding.offsets]
        tokens.append({"ids": list(encoding.ids), "tokens": names, "offsets": offsets})
    return tokens
