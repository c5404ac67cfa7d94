"""Attention of long texts: small maps of every head, or all weights of one head.

Weights are reduced where they are captured, layer by layer, so that a text of 2,000 tokens takes
the memory of one layer and not of all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from regard.attention.capture import CapturePoint
from regard.attention.pruning import heads_masked
from regard.errors import ConfigError
from regard.tasks.inputs import read_whole
from regard.tasks.language_modeling import TextGenerator
from regard.visual.attention_record import Keep, finite, look, run_encoder
from regard.visual.recorded_attention import ForwardPass, RecordedAttention, Words, merged, words_of

if TYPE_CHECKING:
    from regard.tasks.task import Task

CELLS = 128  # rows and columns of a small map at most
MaskedHeads = Mapping[str, Mapping[int, Sequence[int]]]  # kind -> layer -> heads, from 1


@dataclass(frozen=True)
class LayerMaps:
    """The heads of one layer: weights (H, T, S) or, where there are more than `CELLS` rows or
    columns, the largest weight in each cell. heads: their numbers, from 1.
    """

    kind: str
    layer: int
    weights: Tensor
    heads: tuple[int, ...]


@dataclass(frozen=True)
class AttentionMaps:
    """Small maps of every head for one text.

    labels: for each kind of attention those of its queries and of its keys.
    answer: what the task decoded; "" where it decodes nothing.
    """

    layers: tuple[LayerMaps, ...]
    labels: Mapping[str, tuple[Sequence[str], Sequence[str]]]
    answer: str = ""

    def by_words(self) -> AttentionMaps:
        """Attention between words, as `HeadGrid` shows it; maps whose cells stand for several
        weights stay as they are."""
        words = {kind: (words_of(q), words_of(k)) for kind, (q, k) in self.labels.items()}
        layers = tuple(
            replace(layer, weights=merged(layer.weights, *words[layer.kind]))
            if layer.weights.shape[1:] == tuple(map(len, self.labels[layer.kind]))
            else layer
            for layer in self.layers
        )
        labels = {kind: (_texts(rows), _texts(columns)) for kind, (rows, columns) in words.items()}
        return replace(self, layers=layers, labels=labels)


@dataclass(frozen=True)
class HeadMap:
    """One head in full: weights (T, S), with the labels of its queries and keys."""

    weights: Tensor
    queries: Sequence[str]
    keys: Sequence[str]

    def by_words(self) -> HeadMap:
        """Attention between words, as `HeadGrid` shows it."""
        rows, columns = words_of(self.queries), words_of(self.keys)
        return HeadMap(merged(self.weights, rows, columns), _texts(rows), _texts(columns))


@dataclass
class _Reduced:
    """Keeps the largest weight in each cell, and how many queries and keys there were."""

    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __call__(self, attention: RecordedAttention, weights: Tensor) -> Tensor:
        rows, columns = self.sizes.get(attention.name, (0, 0)) if attention.parts else (0, 0)
        size = rows + weights.size(2), max(columns, weights.size(3))
        self.sizes[attention.name] = size
        return reduced(weights)


def reduced(weights: Tensor) -> Tensor:
    """Weights (B, H, T, S) with at most `CELLS` rows and columns: the largest in each cell."""
    rows, columns = weights.shape[2:]
    if max(rows, columns) <= CELLS or not min(rows, columns):
        return weights
    return adaptive_max_pool2d(weights.float(), (min(rows, CELLS), min(columns, CELLS)))


def has_attention(task: Task) -> bool:
    """Whether the attention of the task's model for a text can be drawn."""
    reads = task.input_format is not None or (task.decodes and not task.has("parse"))
    points = (part for part in task.module.modules() if isinstance(part, CapturePoint))
    return reads and not task.reads_images and any(points)


def attention_maps(
    task: Task, text: str | Sequence[str], masked: MaskedHeads | None = None
) -> AttentionMaps:
    """Every head of a task's model while it reads a text, or a pair of texts.

    masked: heads that are masked during the pass.

    Raises:
        RegardError: the text is too long, a head does not exist, or weights are NaN.
    """
    keep = _Reduced()
    recorded, answer = _recorded(task, text, keep, masked)
    layers, labels = [], {}
    for attention, layer in _layers(recorded):
        weights = reduced(attention.weights)[0]
        rows, columns = keep.sizes[attention.name]
        heads = attention.heads or tuple(range(1, weights.size(0) + 1))
        layers.append(LayerMaps(attention.kind, layer, finite(weights), heads))
        labels[attention.kind] = _labels(recorded, attention.kind, rows, columns)
    return AttentionMaps(tuple(layers), labels, answer)


def head_map(
    task: Task,
    text: str | Sequence[str],
    kind: str,
    layer: int,
    head: int | None = None,
    masked: MaskedHeads | None = None,
) -> HeadMap:
    """One head while the task's model reads a text; or the mean of the layer's heads.

    Args:
        kind: "encoder", "decoder", "cross" or "query".
        layer, head: from 1.
        masked: heads that are masked during the pass.

    Raises:
        RegardError: the text is too long, a head does not exist, or weights are NaN.
    """
    names: list[str] = []  # of the attentions of this kind

    def keep(attention: RecordedAttention, weights: Tensor) -> Tensor:
        if attention.kind == kind and attention.name not in names:
            names.append(attention.name)
        return weights if names[layer - 1 :][:1] == [attention.name] else weights[:, :0]

    recorded, _ = _recorded(task, text, keep, masked)
    attention = recorded.attentions[names[layer - 1]] if 0 < layer <= len(names) else None
    heads = weights = None
    if attention is not None:
        weights = finite(attention.weights[0])  # (H, T, S)
        heads = attention.heads or tuple(range(1, len(weights) + 1))
    if weights is None or heads is None or (head is not None and head not in heads):
        raise ConfigError(
            f"There is no head {head or 'mean'} of layer {layer} of {kind} attention: the model "
            f"has {len(names)} such layers, and this one has the heads {heads or ()}."
        )
    chosen = weights.mean(0) if head is None else weights[heads.index(head)]
    return HeadMap(chosen, *_labels(recorded, kind, *chosen.shape))


@contextmanager
def heads_masked_by_kind(task: Task, masked: MaskedHeads | None) -> Iterator[None]:
    """The heads of each kind are masked in the block: see `heads_masked`."""
    with ExitStack() as stack:
        for kind, heads in (masked or {}).items():
            stack.enter_context(heads_masked(task, heads, kind))
        yield


def _recorded(
    task: Task,
    text: Any,
    keep: Keep,
    masked: MaskedHeads | None,
) -> tuple[ForwardPass, str]:
    """The pass of the model over a text, and the answer of a task that decodes."""
    answer = ""
    with heads_masked_by_kind(task, masked), look(task, keep) as attention, read_whole():
        if isinstance(task, TextGenerator):
            ids, _ = task.decoding_inputs([text])
            task.read_ids(ids)
        elif task.decodes:
            answer = task.predict([text])[0]
        else:
            run_encoder(task, [text])
    if not attention.passes:
        raise ConfigError("The text is empty: there are no tokens to attend to.")
    return attention.passes[-1], answer


def _layers(forward_pass: ForwardPass) -> Iterator[tuple[RecordedAttention, int]]:
    """The attentions of a pass, with the number of their layer among those of their kind."""
    count: Counter[str] = Counter()
    for attention in forward_pass.attentions.values():
        count[attention.kind] += 1
        yield attention, count[attention.kind]


def _labels(
    forward_pass: ForwardPass, kind: str, rows: int, columns: int
) -> tuple[Sequence[str], Sequence[str]]:
    """The labels of queries and keys; numbers where the tokens are not known."""
    queries, keys = forward_pass.labels(kind, 0)
    return _filled(queries, rows), _filled(keys, columns)


def _texts(words: Words) -> list[str]:
    return [word for word, _ in words]


def _filled(labels: Sequence[str] | None, count: int) -> Sequence[str]:
    names = list(labels or ())[:count]
    return [*names, *map(str, range(len(names), count))]
