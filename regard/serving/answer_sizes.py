"""How large an answer will be, so that one that is too large is refused before it is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from regard.serving.problems import Problem

if TYPE_CHECKING:
    from regard.tasks.embedder import EmbedsTexts
    from regard.tasks.task import Task

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
    """The bytes of the answer of a function of `regard.serving.calls`, estimated.

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
        return length * count * options.get("top_k", 10)
    if name == "fill":
        return NUMBER * 4 * sum(read) * options.get("top", 5)
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
