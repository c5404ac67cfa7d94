"""Decoding step by step: the distribution of the next token under filters, and a beam as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard import decoding
from regard.data.batches import Sequences
from regard.decoding.beam import Beam
from regard.decoding.filters import NEG_INF, Prefix, Temperature, TopK, TopP, apply
from regard.decoding.length_penalty import limits
from regard.decoding.loop import Sampling
from regard.decoding.steps import (
    check_log_probs,
    eos_tokens,
    evaluating,
    normalized,
    start_decoding,
)
from regard.errors import ConfigError
from regard.tasks.inputs import checked_text, read_whole
from regard.visual.decoding import BeamTrace
from regard.visual.recorded_attention import without_markers

if TYPE_CHECKING:
    from regard.tasks.task import Task

SHOWN = 20  # tokens of a distribution, where a request names no number


def decodes_texts(task: Task) -> bool:
    """Whether the task decodes from a text, token by token."""
    return task.decodes and not task.reads_images and not task.has("parse")


def next_tokens(task: Task, items: list[str], options: dict[str, Any]) -> list[Any]:
    """What comes next after each text and the tokens that were chosen after it."""
    return [_next(task, text, dict(options)) for text in items]


@torch.no_grad()
def _next(task: Task, text: str, options: dict[str, Any]) -> dict[str, Any]:
    chosen, most = options.pop("chosen", []), options.pop("most", SHOWN)
    source, own = _source(task, text)
    method = _sampling(own, options)
    model, eos = task.module, eos_tokens(own.eos, task.module)
    with evaluating(model):
        state, read = start_decoding(model, source)
        _check_chosen(task, chosen, source.ids.size(1))
        after = torch.tensor([chosen], dtype=torch.long, device=read.device)
        fed = torch.cat([read[:, -1:], after], 1)
        scores = model.step(fed, state)[0][0]  # (1, N, V) -> (N, V)
    log_probs = normalized(scores)
    check_log_probs(log_probs[:, 0].tolist(), read.size(1))
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


def _bars(log_probs: Tensor, allowed: Tensor, label: Any, most: int) -> list[dict[str, Any]]:
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


def _as_text(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
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


def _sampling(own: Any, options: dict[str, Any]) -> Sampling:
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
    if wrong := [token for token in chosen if token >= config.vocab_size]:
        raise ConfigError(
            f"`chosen` must be tokens of the model, 0 to {config.vocab_size - 1:,}, but one is "
            f"{wrong[0]:,}."
        )
    used = len(chosen) + (read if task.module.continues else 1)
    if config.max_length is not None and used > config.max_length:
        raise ConfigError(
            f"The model's context is {config.max_length:,} tokens, but {used:,} are to be read. "
            "Take fewer steps, or shorten the text."
        )


def beam_searches(task: Task, items: list[str], options: dict[str, Any]) -> list[Any]:
    """The beam search from each text: every token that was tried, and the hypotheses."""
    return [_search(task, text, options) for text in items]


def _search(task: Task, text: str, options: dict[str, Any]) -> dict[str, Any]:
    source, method = _source(task, text, **options)
    if not isinstance(method, Beam):
        raise ConfigError("`beams` must be at least 2: with one beam nothing is a tree.")
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
