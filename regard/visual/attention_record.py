"""`with regard.look(model) as attention:` records the attention weights of a model.

Attention capture selects the explicit computation of attention on the same weights; nothing else
changes. The weights are kept as tensors on the CPU:

    attention.plot()             every head of every layer, as an interactive picture
    attention.passes             one for each forward pass of the model, with its `attentions`
                                 ("decoder.3.cross": its kind and weights (B, H, T, S)), and the
                                 tokens of its source and target, where they are known
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_max_pool2d

from regard.attention.capture import CapturePoint, Labels, label, listening
from regard.attention.multihead import MultiHeadAttention
from regard.attention.pruning import heads_masked
from regard.decoding.steps import evaluating
from regard.errors import ConfigError, TextError
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Encoder
from regard.tasks.inputs import read_whole, text_or_pair
from regard.tasks.language_modeling import TextGenerator
from regard.visual.charts import Heatmap
from regard.visual.head_grid import HeadGrid, check_one
from regard.visual.picture import Illustration, PictureRow
from regard.visual.recorded_attention import ForwardPass, RecordedAttention, Words, merged, words_of

if TYPE_CHECKING:
    from regard.data.encoder_inputs import InputFormat
    from regard.tasks.task import Task


# What is kept of weights (B, H, T, S), from the attention that they are of.
Keep = Callable[[RecordedAttention, Tensor], Tensor]


def all_weights(attention: RecordedAttention, weights: Tensor) -> Tensor:
    """The weights themselves."""
    return weights


class AttentionRecord:
    """What was recorded: a listener of the capture points of a model, or of a part of it.

    keep: what is kept of the weights of each attention, for long texts.
    """

    def __init__(self, module: nn.Module, keep: Keep = all_weights):
        self._keep = keep
        self.passes: list[ForwardPass] = []
        self._next, self._announced = ForwardPass(), False
        self._names = {
            id(point): name.removesuffix(".capture")
            for name, point in module.named_modules()
            if isinstance(point, CapturePoint)
        }
        self._heads = {
            id(attention.capture): tuple(head + 1 for head in attention.remaining_heads)
            for attention in module.modules()
            if isinstance(attention, MultiHeadAttention)
            and attention.remaining_heads != tuple(range(attention.heads))
        }
        if not self._names:
            name, others = type(module).__name__, "--gradients and --cell show recurrent models"
            raise ConfigError(f"{name} has no attention. In `regard look` {others}.")

    def _repr_html_(self) -> str | None:
        """In a notebook: every recorded head."""
        return self.plot()._repr_html_() if self.passes else None

    def wants(self, point: CapturePoint) -> bool:
        """Whether the point is one of this model."""
        return id(point) in self._names

    def take(self, point: CapturePoint, weights: Tensor) -> None:
        """Record weights (B, H, T, S)."""
        name = self._name_of(point)
        if self._starts_pass(name, point, weights):
            self.start_pass()
            name = self._name_of(point)
        attention = RecordedAttention(name, point.kind, self._heads.get(id(point), ()))
        attention = self.passes[-1].attentions.setdefault(name, attention)
        attention.parts.append(self._keep(attention, weights.detach()).float().cpu())

    def _name_of(self, point: CapturePoint) -> str:
        """The name of an attention; where several layers share it, with the number of the layer
        that comes next.
        """
        name = self._names[id(point)]
        if point.uses == 1:
            return name
        seen = self.passes[-1].attentions if self.passes else {}
        return f"{name}.{sum(other.startswith(f'{name}.') for other in seen) % point.uses}"

    def _starts_pass(self, name: str, point: CapturePoint, weights: Tensor) -> bool:
        """Whether another pass began without a call of the model itself (`encode`, `scores`): its
        tokens were announced, or the first queries of a text come again."""
        repeated = bool(self.passes) and name in self.passes[-1].attentions
        first = point.kind != "cross" and weights.size(-1) == weights.size(-2)
        return not self.passes or self._announced or (repeated and first)

    def label(self, source: Labels | None, target: Labels | None) -> None:
        """The tokens that the next pass reads."""
        self._next, self._announced = ForwardPass(source=source, target=target), True

    def start_pass(self) -> None:
        """A forward pass starts."""
        self.passes.append(self._next)
        self._next, self._announced = ForwardPass(), False

    def plot(
        self, kind: str | None = None, layer: int | None = None, example: int | None = None
    ) -> HeadGrid:
        """Every recorded head, as a picture: `attention.plot(layer=5).save("heads.html")`.

        kind: "encoder", "decoder", "cross" or "query".  layer: from 1.  example: a row of a batch,
        counted over all passes from 0.

        Raises:
            ConfigError: there are no such heads.
        """
        return HeadGrid.of(self.passes).select(kind, layer, example)

    def for_token(
        self, token: str | int, layer: int | None = None, head: int | None = None, **which: Any
    ) -> Illustration:
        """What one token attends to: `attention.for_token("it", layer=5).save("it.png")`.

        layer, head: as for `HeadGrid.for_token`.  which: `kind` and `example`, as for `plot`.
        """
        return self.plot(layer=layer, **which).for_token(token, head)


@contextmanager
def look(model: Any, keep: Keep = all_weights) -> Iterator[AttentionRecord]:
    """Record the attention weights of every forward pass in the block.

    Args:
        model: a model, or what `regard.load` returns.
        keep: what is kept of the weights of each attention; all of them where it is not given.

    Raises:
        ConfigError: the model has no attention.
    """
    module = _module_of(model)
    record = AttentionRecord(module, keep)

    def start_pass(*_: Any) -> None:
        if listening.get() is record:
            record.start_pass()

    hook = module.register_forward_pre_hook(start_pass)
    token = listening.set(record)
    try:
        yield record
    finally:
        listening.reset(token)
        hook.remove()


def run_encoder(
    model: Any,
    texts: Sequence[str | Sequence[str]],
    input_format: InputFormat | None = None,
) -> None:
    """Run an encoder over texts in evaluation mode, so that their attention is recorded.

    with regard.look(model) as attention:
        run_encoder(model, ["The animal didn't cross the street because it was too tired."])

    Args:
        model: a task on an encoder, or an encoder with `input_format`.
        texts: texts or pairs of texts (a, b).
        input_format: how texts become inputs, for a model without a task.

    Raises:
        TextError: a text is longer than the model's limit.
        ConfigError: `input_format` is missing.
    """
    module, input_format = as_encoder(model, input_format)
    rows = encoded_texts(texts, input_format)
    batch, label_of = input_format.batch(rows), input_format.tokenizer.label
    encoder = module.encoder if isinstance(module, EncoderWithHeads) else module
    if isinstance(encoder, Encoder):
        encoder.label_texts([row.ids for row in rows], label_of)
        batch = encoder.complete(batch, input_format.tokenizer)
    else:
        label([list(map(label_of, row.ids)) for row in rows])
    batch = batch.to(next(module.parameters()).device)
    with torch.no_grad(), evaluating(module):
        if isinstance(module, Encoder):
            module.encode(batch)
        else:
            module(batch)


def encoded_texts(texts: Sequence[str | Sequence[str]], input_format: InputFormat) -> Any:
    """The inputs of texts or of pairs of texts.

    Raises:
        TextError: a text is longer than the model's limit.
    """
    rows = input_format.encode(
        [(text,) if isinstance(text, str) else tuple(text) for text in texts]
    )
    if long := input_format.too_long(rows):
        problem = (
            f"has {len(rows[long[0]])} tokens, more than `max_length`, {input_format.max_length}."
        )
        raise TextError(long[0], problem, "Shorten it.")
    return rows


def as_encoder(model: Any, input_format: InputFormat | None) -> tuple[nn.Module, InputFormat]:
    """The model itself, and how its texts become inputs.

    Raises:
        ConfigError: neither the model nor the caller says it.
    """
    form = input_format or (None if isinstance(model, nn.Module) else model.input_format)
    if form is None:
        raise ConfigError(f"{type(model).__name__} needs an `input_format`, as a task has one.")
    return _module_of(model), form


def _module_of(model: Any) -> nn.Module:
    return model if isinstance(model, nn.Module) else model.module


def attention_of_text(
    task: Task, text: str | Sequence[str], decoding: Mapping[str, Any] | None = None
) -> tuple[AttentionRecord, str]:
    """The attention weights while a task processes a text, and its answer where it decodes.

    Args:
        text: a text, or the texts of a pair for an encoder.
        decoding: options of decoding, where the task decodes.

    Raises:
        RegardError: the model has no attention, the text is too long, or weights are infinite or
            NaN.
    """
    answer = ""
    with look(task) as attention, read_whole():
        if task.decodes:
            answer = task.predict([text], **(decoding or {}))[0]
        else:
            run_encoder(task, [text_or_pair(text, 0)])
    for each in attention.passes:
        for recorded in each.attentions.values():
            finite(recorded.weights)
    return attention, answer


def mean_weights(
    heads: HeadGrid, kind: str | None = None, layer: int | None = None, head: int | None = None
) -> tuple[Heatmap, dict[str, Any]]:
    """The mean of heads as a picture, and the same as plain values.

    Args:
        kind: "encoder", "decoder", "cross" or "query"; None: the main kind of the model.
        layer, head: from 1; None: the mean of all.

    Raises:
        ConfigError: there are no such heads.
    """
    shown = heads.select(kind or heads.main_kind, layer)
    picture = shown.mean(head)
    return picture, {
        "kind": shown.panels[0].kind,
        "layers": [panel.layer for panel in shown.panels],
        "head": head,
        "rows": picture.rows,
        "columns": picture.columns,
        "weights": picture.weights,
    }


def token_weights(
    heads: HeadGrid,
    token: str,
    kind: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> Illustration:
    """What a token attends to as a picture with its numbers.

    Args:
        token: among the queries; or its index from 0, where no query is spelled like this number.
        kind, layer, head: as for `mean_weights`; without a head in one layer, each of its heads.

    Raises:
        ConfigError: there are no such heads, or the token does not occur once.
    """
    heads = heads.select(kind or heads.main_kind, layer)
    is_index = token.isdecimal() and token not in heads.shown[0].queries
    return heads.for_token(int(token) if is_index else token, head)


def finite(weights: Tensor) -> Tensor:
    """The weights, checked: a picture would show those that are not finite as zeros.

    Raises:
        ConfigError: some are infinite or NaN.
    """
    if not bool(weights.isfinite().all()):
        raise ConfigError("The attention weights are infinite or NaN: use another model.")
    return weights


def attention_comparison(
    models: Mapping[str, AttentionRecord | HeadGrid],
    layers: Sequence[int],
    *,
    kind: str | None = None,
    example: int | None = None,
    head: int | None = None,
    title: str = "",
    tokens: bool = False,
) -> Illustration:
    """The attention of several models in one text, each with its own tokens as labels.

    attention_comparison({"base": record, "tuned": other}, layers=[1, 6]).save("both.html")

    Args:
        models: name -> what `regard.look` recorded, or its `plot()`.
        layers: which, from 1; every model must have them.
        kind: which attention, where a model has several.
        example: which text, from 0, where several were recorded.
        head: from 1; without it the mean of a layer's heads.
        title: of the picture.
        tokens: whether subwords are shown, not merged to words.

    Returns:
        A row of heatmaps for each layer, with one colour scale; `numbers["models"]` are theirs.

    Raises:
        ConfigError: a layer is absent, or `kind` or `example` must be given.
    """
    rows, numbers = [], []
    for layer in layers:
        row = []
        for name, record in models.items():
            grid = record if isinstance(record, HeadGrid) else record.plot()
            grid = replace(grid.select(kind, layer, example), tokens=tokens)
            check_one({(panel.kind, panel.example) for panel in grid.panels}, f"{name}: ")
            picture, facts = mean_weights(grid, grid.panels[0].kind, layer, head)
            row.append(replace(picture, title=f"{name}, {picture.title}", side=420))
            numbers.append({"model": name, **facts})
        peak = max(picture.largest for picture in row)
        rows.append(PictureRow(tuple(replace(picture, peak=peak) for picture in row)))
    return Illustration(tuple(rows), title, numbers={"models": numbers})


# ---- long texts: small maps of every head, or all weights of one head
#
# Weights are reduced where they are captured, layer by layer, so that a text of 2,000 tokens takes
# the memory of one layer and not of all of them.

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
        has = f"{len(names)} such layers, this one with the heads {heads or ()}"
        raise ConfigError(f"There is no head {head} of layer {layer} of {kind} attention: {has}.")
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
