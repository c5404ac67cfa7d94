"""Attention weights as bytes, and the answers with and without masked heads.

The page colours a cell by the square root of its weight, so that small weights are seen; it is the
root that is coded, in 8 bits for small maps and in 16 for one head, little-endian, in base64.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.tasks.inputs import read_whole
from regard.visual.attention_maps import (
    AttentionMaps,
    MaskedHeads,
    attention_maps,
    head_map,
    heads_masked_by_kind,
)

if TYPE_CHECKING:
    from regard.tasks.task import Task

MOST_TOKENS = 40  # generated for a comparison


def small_maps(task: Task, items: list[Any], options: dict[str, Any]) -> list[Any]:
    """Small maps of all heads for each text."""
    by_words = options.get("unit") != "tokens"
    return [_maps(attention_maps(task, item, _masked(options)), by_words) for item in items]


def _maps(of_tokens: AttentionMaps, by_words: bool) -> dict[str, Any]:
    of_words = of_tokens.by_words()
    maps = of_words if by_words else of_tokens
    layers = [
        {
            "kind": layer.kind,
            "layer": layer.layer,
            "heads": list(layer.heads),
            "rows": layer.weights.size(1),
            "columns": layer.weights.size(2),
            "roots": coded(layer.weights, 8),
        }
        for layer in maps.layers
    ]
    labels = {
        kind: {"queries": list(queries), "keys": list(keys)}
        for kind, (queries, keys) in maps.labels.items()
    }
    merges = any(
        len(words) != len(tokens)
        for kind, sides in of_tokens.labels.items()
        for words, tokens in zip(of_words.labels[kind], sides, strict=True)
    )
    return {"layers": layers, "labels": labels, "answer": maps.answer, "merges": merges}


def one_head(task: Task, items: list[Any], options: dict[str, Any]) -> list[Any]:
    """One head in full, or the mean of the heads of a layer, for each text."""
    which = options["kind"], options["layer"], options.get("head")
    maps = [head_map(task, item, *which, _masked(options)) for item in items]
    if options.get("unit") != "tokens":
        maps = [head.by_words() for head in maps]
    return [
        {
            "queries": list(head.queries),
            "keys": list(head.keys),
            "roots": coded(head.weights, 16),
        }
        for head in maps
    ]


def answers_with_masked_heads(task: Task, items: list[Any], options: dict[str, Any]) -> list[Any]:
    """The answer to each text, with all heads and without the masked ones."""
    before = [_answer(task, item) for item in items]
    with heads_masked_by_kind(task, _masked(options)):
        after = [_answer(task, item) for item in items]
    return [_difference(answer, other) for answer, other in zip(before, after, strict=True)]


def _answer(task: Task, item: Any) -> dict[str, Any]:
    """The answer of a task to a text."""
    with read_whole():
        if task.decodes:
            return {"text": task.predict([item], max_tokens=_room(task, item))[0]}
        (prediction,) = task.predict([item], return_proba=True)
        return {"text": str(prediction), **prediction.values()}


def _room(task: Task, text: str) -> int:
    """How many tokens are generated: as many as fit after a prompt, up to `MOST_TOKENS`."""
    context = task.module.config.max_length
    if context is None or not task.module.continues:
        return MOST_TOKENS
    read = len(task.decoding_inputs([text])[0][0])
    return max(1, min(MOST_TOKENS, context + 1 - read))


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Both answers; of vectors their cosine similarity and Euclidean distance."""
    if "vector" not in before:
        return {"with_all": before, "without": after}
    vector, other = torch.tensor(before["vector"]), torch.tensor(after["vector"])
    cosine = float(torch.cosine_similarity(vector, other, dim=0))
    return {"cosine": cosine, "distance": float((vector - other).norm())}


def coded(weights: Tensor, bits: int) -> dict[str, Any]:
    """The square roots of weights as integers: root = integer / (2^bits - 1) * largest."""
    roots = weights.clamp(min=0).sqrt()
    largest = max(1.0, float(roots.max()) if roots.numel() else 1.0)
    largest_integer = 2**bits - 1
    numbers = (roots * (largest_integer / largest)).round().to(torch.int32).numpy()
    data = numbers.astype("<u2" if bits == 16 else "u1").tobytes()
    return {"bits": bits, "largest": largest, "data": base64.b64encode(data).decode()}


def _masked(options: dict[str, Any]) -> MaskedHeads:
    """The heads of the request, by kind and layer."""
    masked: dict[str, dict[int, list[int]]] = {}
    heads: Sequence[dict[str, Any]] = options.get("masked_heads", ())
    for head in heads:
        masked.setdefault(head["kind"], {}).setdefault(head["layer"], []).append(head["head"])
    return masked
