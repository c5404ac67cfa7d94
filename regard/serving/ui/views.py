"""What views show of tokens, cells of recurrent models, images, attention, and decoding.

The page colours a cell of attention by the square root of its weight, so that small weights are
seen; it is the root that is coded, in 8 bits for small maps and in 16 for one head, little-endian,
in base64.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard import decoding
from regard.data.batches import Sequences
from regard.decoding import steps
from regard.decoding.beam import Beam
from regard.decoding.filters import NEG_INF, Prefix, Temperature, TopK, TopP, apply
from regard.decoding.length_penalty import limits
from regard.decoding.loop import Sampling
from regard.errors import ConfigError
from regard.serving.requests import Fields
from regard.serving.work import regions_of
from regard.tasks.inputs import checked_text, read_whole
from regard.text.explain import LookedUpWord, MatchedWord, MergedWord, encoding
from regard.visual import attention_record
from regard.visual.decoding import BeamTrace
from regard.visual.drawing import LIGHT, visible
from regard.visual.picture import Note, Picture, PictureColumn, PictureRow, Table
from regard.visual.recorded_attention import without_markers
from regard.visual.recurrent_cells import KINDS, CellText, cell_activation, find_cells, reader_of

if TYPE_CHECKING:
    from regard.tasks.task import Task


ALGORITHMS: dict[type, str] = {
    MergedWord: "merges",
    MatchedWord: "longest match",
    LookedUpWord: "vocabulary",
}


def tokenization_steps(task: Task, items: list[str], options: Fields) -> list[Any]:
    """The words of each text, with the steps in which each becomes tokens."""
    return [
        {
            "tokenizer": task.tokenizer.kind,
            "words": [_values(word) for word in encoding(task.tokenizer, text)],
        }
        for text in items
    ]


def _values(word: Any) -> Fields:
    """The fields of a word as JSON has them."""
    return {"algorithm": ALGORITHMS[type(word)], **asdict(word)}


def has_cells(task: Task) -> bool:
    """Whether the model of a task has cells that can be shown."""
    with suppress(ConfigError):
        return bool(reader_of(task.module).widths)
    return False


def one_cell(task: Task, items: list[str], options: Fields) -> list[Any]:
    """Each text coloured by a cell, with the model's layers."""
    reader = reader_of(task.module)
    pairs = zip(reader.names, reader.widths, strict=True)
    layers = [{"name": name, "cells": width} for name, width in pairs]
    pictures = [cell_activation(task.module, task.tokenizer, text, **options) for text in items]
    return [{"picture": plain_picture(picture), "layers": layers} for picture in pictures]


def found_cells(task: Task, items: list[str], options: Fields) -> list[Any]:
    """For each text the cells that follow its properties most closely."""
    properties, _ = KINDS[options["properties"]]
    results = []
    for text in items:
        search = find_cells(task.module, task.tokenizer, [text], properties, best=options["best"])
        cells = {name: [cell._asdict() for cell in best] for name, best in search.numbers.items()}
        results.append({"cells": cells, "lines": plain_picture(search.parts[0])["lines"]})
    return results


def pictures_of_regions(task: Task, items: list[str], options: Fields) -> list[Any]:
    """Each image once for each word of its description, bright where its weights are large."""
    return [{"picture": plain_picture(words)} for words in regions_of(task, items, options)]


@singledispatch
def plain_picture(picture: Picture) -> Fields:
    """A picture as plain values; "kind" says which."""
    drawing = picture.drawing()
    title, width = visible(drawing.title), round(drawing.width, 2)
    return {"kind": "drawing", "title": title, "width": width, "svg": drawing.svg(of_page)}


def of_page(role: str) -> str:
    """A colour as the variable of the page's style sheet."""
    return f"var(--{role})" if role in LIGHT else role


@plain_picture.register
def _(picture: Note) -> Fields:
    lines = [visible(line) for line in picture.lines]
    return {"kind": "note", "title": visible(picture.title), "lines": lines}


@plain_picture.register
def _(picture: Table) -> Fields:
    rows = [[visible(cell) for cell in row] for row in picture.rows]
    head = [visible(name) for name in picture.head]
    title = visible(picture.title)
    return {"kind": "table", "title": title, "head": head, "rows": rows, "best": picture.best}


@plain_picture.register
def _(picture: CellText) -> Fields:
    pieces = [
        [text.encode(errors="replace").decode(), None if value is None else round(value, 4)]
        for text, value in picture.pieces
    ]
    return {"kind": "cells", "title": visible(picture.title), "pieces": pieces}


@plain_picture.register
def _(picture: PictureColumn) -> Fields:
    return _several("column", picture)


@plain_picture.register
def _(picture: PictureRow) -> Fields:
    return _several("row", picture)


def _several(kind: str, picture: PictureColumn) -> Fields:
    parts = [plain_picture(part) for part in picture.parts]
    return {"kind": kind, "title": visible(picture.title), "parts": parts}


# ---- attention

MOST_TOKENS = 40  # generated for a comparison


def small_maps(task: Task, items: list[Any], options: Fields) -> list[Any]:
    """Small maps of all heads for each text."""
    by_words = options["unit"] == "words"
    return [
        _maps(attention_record.attention_maps(task, item, _masked(options)), by_words)
        for item in items
    ]


def _maps(of_tokens: attention_record.AttentionMaps, by_words: bool) -> Fields:
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


def one_head(task: Task, items: list[Any], options: Fields) -> list[Any]:
    """One head in full, or the mean of the heads of a layer, for each text."""
    which = options["kind"], options["layer"], options.get("head")
    maps = [attention_record.head_map(task, item, *which, _masked(options)) for item in items]
    if options["unit"] == "words":
        maps = [head.by_words() for head in maps]
    return [
        {
            "queries": list(head.queries),
            "keys": list(head.keys),
            "roots": coded(head.weights, 16),
        }
        for head in maps
    ]


def answers_with_masked_heads(task: Task, items: list[Any], options: Fields) -> list[Any]:
    """The answer to each text, with all heads and without the masked ones."""
    before = [_answer(task, item) for item in items]
    with attention_record.heads_masked_by_kind(task, _masked(options)):
        after = [_answer(task, item) for item in items]
    return [_difference(answer, other) for answer, other in zip(before, after, strict=True)]


def _answer(task: Task, item: Any) -> Fields:
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


def _difference(before: Fields, after: Fields) -> Fields:
    """Both answers; of vectors their cosine similarity and Euclidean distance."""
    if "vector" not in before:
        return {"with_all": before, "without": after}
    vector, other = torch.tensor(before["vector"]), torch.tensor(after["vector"])
    cosine = float(torch.cosine_similarity(vector, other, dim=0))
    return {"cosine": cosine, "distance": float((vector - other).norm())}


def coded(weights: Tensor, bits: int) -> Fields:
    """The square roots of weights as integers: root = integer / (2^bits - 1) * largest."""
    roots = weights.clamp(min=0).sqrt()
    largest = max(1.0, float(roots.max()) if roots.numel() else 1.0)
    largest_integer = 2**bits - 1
    numbers = (roots * (largest_integer / largest)).round().to(torch.int32).numpy()
    data = numbers.astype("<u2" if bits == 16 else "u1").tobytes()
    return {"bits": bits, "largest": largest, "data": base64.b64encode(data).decode()}


def _masked(options: Fields) -> attention_record.MaskedHeads:
    """The heads of the request, by kind and layer."""
    masked: dict[str, dict[int, list[int]]] = {}
    heads: Sequence[Fields] = options["masked_heads"]
    for head in heads:
        masked.setdefault(head["kind"], {}).setdefault(head["layer"], []).append(head["head"])
    return masked


# ---- decoding step by step: the next token under filters, and a beam as a tree


def decodes_texts(task: Task) -> bool:
    """Whether the task decodes from a text, token by token."""
    return task.decodes and not task.reads_images and not task.has("parse")


def next_tokens(task: Task, items: list[str], options: Fields) -> list[Any]:
    """What comes next after each text and the tokens that were chosen after it."""
    return [_next(task, text, dict(options)) for text in items]


@torch.no_grad()
def _next(task: Task, text: str, options: Fields) -> Fields:
    chosen, most = options.pop("chosen"), options.pop("most")
    source, own = _source(task, text)
    method = _sampling(own, options)
    model, eos = task.module, steps.eos_tokens(own.eos, task.module)
    with steps.evaluating(model):
        state, read = steps.start_decoding(model, source)
        _check_chosen(task, chosen, source.ids.size(1))
        after = torch.tensor([chosen], dtype=torch.long, device=read.device)
        fed = torch.cat([read[:, -1:], after], 1)
        scores = model.step(fed, state)[0][0]  # (1, N, V) -> (N, V)
    log_probs = steps.normalized(scores)
    steps.check_log_probs(log_probs[:, 0].tolist(), read.size(1))
    limit = limits(method.max_tokens, model, source, 1)
    prefix = Prefix(torch.cat([read, after], 1), len(chosen), eos, limit.to(read.device))
    allowed = apply(method.filters, scores[-1:].to(log_probs.dtype), prefix)
    row = torch.zeros(1, dtype=torch.long, device=read.device)
    drawn, _ = method.chooser(source, limit)(scores[-1:], prefix, row)
    target = task.tokenizer.for_targets
    return {
        "read": _as_text([{"token": task.tokenizer.label(i)} for i in source.ids[0].tolist()]),
        "chosen": _as_text(
            [
                {"id": token, "token": target.label(token), "log_prob": float(log_probs[at, token])}
                for at, token in enumerate(chosen)
            ]
        ),
        "text": target.decode([token for token in chosen if token not in eos]),
        "next": _bars(log_probs[-1], allowed[0], target.label, most),
        "others": max(0, log_probs.size(-1) - most),
        "allowed": int((allowed > NEG_INF).sum()),
        "entropy": float(-(log_probs[-1].exp() * log_probs[-1]).nan_to_num(0.0).sum()),
        "drawn": int(drawn),
        "greedy": int(allowed[0].argmax()),
        "ended": bool(chosen) and chosen[-1] in eos,
    }


def _bars(log_probs: Tensor, allowed: Tensor, label: Any, most: int) -> list[Fields]:
    """The most probable tokens (V,): the model's probability, and the one after the filters."""
    after = allowed.softmax(-1)
    best = log_probs.topk(min(most, len(log_probs)))
    rows = [
        {
            "id": token,
            "token": label(token),
            "probability": float(log_probs[token].exp()),
            "filtered": float(after[token].nan_to_num(0.0)),
        }
        for token in best.indices.tolist()
    ]
    return _as_text(rows)


def _as_text(rows: list[Fields]) -> list[Fields]:
    """The same, each token also as text."""
    texts = without_markers([row["token"] for row in rows])
    return [{**row, "text": text} for row, text in zip(rows, texts, strict=True)]


def _source(task: Task, text: str, **options: Any) -> tuple[Sequences, Any]:
    """The ids that the model reads or continues, and how the task decodes."""
    with read_whole():
        rows, method = task.decoding_inputs([checked_text(text, 0)], **options)
    ids = [int(number) for number in np.asarray(rows[0])]
    device = next(task.module.parameters()).device
    return Sequences.of([ids], task.module.config.pad).to(device), method


def _sampling(own: Any, options: Fields) -> Sampling:
    """Sampling with the options of a request; of the task's own filters those that forbid tokens
    stay, and temperature, top-k and top-p are what the request says."""
    method: Sampling = decoding.options("sampling", **options)
    filters = [one for one in own.filters if not isinstance(one, Temperature | TopK | TopP)]
    return replace(method, filters=(*filters, *method.filters), eos=own.eos)


def _check_chosen(task: Task, chosen: Sequence[int], read: int) -> None:
    """Check the tokens that a request has chosen.

    Raises:
        ConfigError: the vocabulary or the context of the model has no room for them.
    """
    config = task.module.config
    used = len(chosen) + (read if task.module.continues else 1)
    if used > (config.max_length or used) or max(chosen, default=0) >= config.vocab_size:
        raise ConfigError(
            f"`chosen` must be tokens of the model, below {config.vocab_size:,}, that fit into its "
            f"context, but {used:,} tokens are to be read."
        )


def beam_searches(task: Task, items: list[str], options: Fields) -> list[Any]:
    """The beam search from each text: every token that was tried, and the hypotheses."""
    return [_search(task, text, options) for text in items]


def _search(task: Task, text: str, options: Fields) -> Fields:
    source, method = _source(task, text, **options)
    assert isinstance(method, Beam)  # with 2 beams or more
    trace = BeamTrace(method.size)
    hypotheses = replace(method, n_best=method.size).run(task.module, source, trace)[0]
    tree = trace.tree(task.tokenizer.for_targets.label, hypotheses[0])
    nodes = [
        {"token": node.token, "log_prob": node.log_prob, "parent": node.parent, "state": node.state}
        for node in tree.nodes
    ]
    texts = task.spelled([text], [hypotheses])[0]
    return {
        "nodes": _as_text(nodes),
        "winning": sorted(tree.winning),
        "hypotheses": [
            {"text": spelled, "score": node.score, "log_prob": node.log_prob}
            for spelled, node in zip(texts, hypotheses, strict=True)
        ],
    }
