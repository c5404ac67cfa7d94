"""ONNX, for ONNX Runtime: encoders with their heads, decoders with their cache, encoder-decoders.

`torch.onnx` writes the graphs from the models' own `forward` and `step`, of their definitions in
plain PyTorch:

    model.onnx      an encoder: hidden states, or what its task heads give; or a decoder: logits,
                    and keys and values of all tokens, which are inputs of the next call
    encoder.onnx    of an encoder-decoder: the keys and values that its decoder reads
    decoder.onnx    its logits, and keys and values of all targets
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard import ops
from regard.attention.cache import KeyValueCache
from regard.attention.relative import RelativeBias
from regard.data.batches import Sequences
from regard.errors import RegardError
from regard.exporting import Comparison, Difference, ExportSource, WeightsInFile, package
from regard.file_writing import write_json
from regard.layers.positions import PositionTable, SinusoidalPositions
from regard.layers.recurrent import RecurrentLayer
from regard.models.bigbird import BigBird
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import CrossAttentionModel, Encoder, LanguageModel
from regard.models.t5 import T5
from regard.models.transformer import RegionTransformer, Transformer, TransformerState
from regard.ops import KeyMask
from regard.state import State
from regard.tasks.folders import config_of_task


@dataclass
class GraphCache(State):
    """Keys and values of earlier tokens, as many of each sequence; a `KeyValueCache` in a graph.

    past: keys and values of each layer, (B, H, P, K), in turn.
    grown: the same with those of new tokens, (B, H, P + T, K), once all layers have been computed.
    """

    past: list[Tensor]
    grown: list[Tensor] = field(default_factory=list)
    equal_lengths = True

    @property
    def longest(self) -> int:
        """P."""
        return self.past[0].size(2)

    @property
    def lengths(self) -> Tensor:
        """(B,) times P."""
        return self.past[0].new_full(self.past[0].shape[:1], self.longest, dtype=torch.long)

    def reserve(self, count: int) -> GraphCache:
        """The same: it is not written into."""
        return self

    def positions(self, count: int) -> Tensor:
        """Of the next tokens of each sequence, (B, T)."""
        return self.lengths[:, None] + torch.arange(count)

    def mask(self, count: int, window: int | None = None) -> KeyMask:
        keys = torch.arange(self.longest + count)
        queries = self.longest + torch.arange(count)[:, None]
        seen = keys <= queries  # (T, P + T)
        return KeyMask((seen if window is None else seen & (keys > queries - window))[None, None])

    def layer(self, number: int) -> GraphLayer:
        """The keys and values of one layer."""
        return GraphLayer(self, number)

    def advance(self, count: int) -> GraphCache:
        """The same: the next call of the graph has the new tokens among the earlier ones."""
        return self


@dataclass(frozen=True)
class GraphLayer:
    """One layer of a `GraphCache`."""

    cache: GraphCache
    number: int

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        past = self.cache.past[2 * self.number : 2 * self.number + 2]
        both = [torch.cat(pair, 2) for pair in zip(past, (key, value), strict=True)]
        self.cache.grown += both
        return both[0], both[1]


@dataclass
class GraphSource(State):
    """Keys and values of sources, a `SourceMemory` in a graph.

    read: of each layer, (B, H, S, K), in turn.  attention_mask: (B, S), 1 for tokens.
    """

    read: list[Tensor]
    attention_mask: Tensor

    @property
    def mask(self) -> KeyMask:
        """Every query sees the tokens of its source."""
        return KeyMask.padding(self.attention_mask.sum(1), self.attention_mask.size(1))

    def layer(self, layer: int, heads: int | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer."""
        return self.read[2 * layer], self.read[2 * layer + 1]


class GatheredPositions(PositionTable):
    """A table of positions whose vectors are gathered: a runtime shortens a slice that goes beyond
    its end, and adds what is left to every token if it is one vector; to gather it is an error.
    """

    def __init__(self, table: PositionTable):
        super().__init__()
        self.table, self.max_length = table, table.max_length

    def forward(self, count: int, start: int = 0) -> Tensor:
        return self.at((start + torch.arange(count))[None], start + count)[0]

    def at(self, positions: Tensor, end: int) -> Tensor:
        return self.table.at(positions, end)

    def of(self, batch: Sequences) -> Tensor:
        return self.table.of(batch)


@contextmanager
def gathered_positions(module: nn.Module) -> Iterator[None]:
    """Inside, each table of positions of a module is a `GatheredPositions`."""
    tables = [
        (part, name, table)
        for part in module.modules()
        for name, table in part.named_children()
        if isinstance(table, PositionTable)
    ]
    for part, name, table in tables:
        setattr(part, name, GatheredPositions(table))
    try:
        yield
    finally:
        for part, name, table in tables:
            setattr(part, name, table)


class BucketTable:
    """The bucket of each distance, computed before: a runtime rounds logarithms in its own way, and
    the bounds of buckets are whole numbers.
    """

    def __init__(self, bias: RelativeBias):
        limit = bias.max_distance
        self.limit = limit
        self.table = bias.bucket(torch.arange(-limit, limit + 1), bias.buckets, limit)

    def __call__(self, distance: Tensor, buckets: int, max_distance: int) -> Tensor:
        """(...,) -> (...,)"""
        return self.table[distance.clamp(-self.limit, self.limit) + self.limit]


HEADS = (
    *("pooler", "masked_lm", "replaced", "next_sentence", "sentence_order"),
    *("classes", "tags", "span", "multiple_choice"),
)
EXAMPLE, EXAMPLE_PAST = 3, 4  # tokens and earlier ones of the inputs with which a model is traced
SOURCES = {0: "batch", 1: "source_length"}
TARGETS = {0: "batch", 1: "length"}
PAST = {0: "batch", 2: "past_length"}
OF_SOURCE = {0: "batch", 2: "source_length"}


@dataclass(frozen=True)
class Graph:
    """One file.

    name: of the file.
    module: what it computes.
    inputs: of an example, as `module` takes them: tensors or lists of them.
    names: of all input tensors.  axes: of the inputs, those whose size is free.
    outputs: the names of the outputs.
    """

    name: str
    module: nn.Module
    inputs: tuple[Any, ...]
    names: list[str]
    axes: tuple[Any, ...]
    outputs: list[str]


class ONNX:
    """Folders of ONNX graphs."""

    name = "ONNX Runtime"
    ending = "-onnx"
    package = "onnxruntime"
    distribution = "onnxruntime"
    tolerance = 1e-4
    quantizes = False

    def write(
        self, source: ExportSource, out: Path, weights: WeightsInFile | None
    ) -> tuple[str, ...]:
        package("onnx")
        package("onnxscript")
        graphs = _graphs(source)
        out.mkdir()
        for graph in graphs:
            _write(source, graph, out)
        source.tokenizer.save(out)
        write_json(out / "config.json", config_of_task(source.task))
        if isinstance(source.model, LanguageModel):
            return ("the sequences of a batch have one length: there is no mask of padding",)
        return ("padding stands on the right of a sequence",)

    def compare(self, source: ExportSource, out: Path) -> Comparison:
        with torch.no_grad(), ops.reference():
            if isinstance(source.model, LanguageModel):
                ids = source.batch.ids
                ours = source.body.head.logits(source.body(ids).hidden)
                theirs = Session(out / "model.onnx").in_two_calls(ids)
                return (Difference.between("logits", ours, theirs),), ()
            if isinstance(source.model, CrossAttentionModel):
                sessions = Session(out / "encoder.onnx"), Session(out / "decoder.onnx")
                return (_compare_both(source, *sessions),), ()
            return _compare_encoder(source, Session(out / "model.onnx")), ()


# ----------------------------------------------------------------------------------- graphs


def _graphs(source: ExportSource) -> list[Graph]:
    """The files of a model.

    Raises:
        ConfigError: it is none of the three kinds, or has a head that is no function of its states.
    """
    model = source.model
    source.check_heads(HEADS)
    if isinstance(model, LanguageModel) and isinstance(model.empty(1), KeyValueCache):
        return [_decoder_graph(model)]
    if isinstance(model, Transformer | T5) and not isinstance(model, RegionTransformer):
        state = model.read(Sequences.full(torch.zeros(1, 1, dtype=torch.long)))
        return [_encoder_side(model), _decoder_side(model, state)]
    if isinstance(model, Encoder | EncoderWithHeads) and not isinstance(model, LanguageModel):
        return [_encoder_graph(source)]
    hint = "Encoders, and decoders whose state is a cache of keys and values, can be exported."
    raise source.unsupported(f"is given no graph of {type(source.body).__name__}", hint)


class HiddenStates(nn.Module):
    """The hidden states themselves, as a head."""

    def forward(self, hidden: Tensor, batch: Sequences) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        return hidden


class EncoderOutputs(nn.Module):
    """The outputs of heads, of ids padded on the right."""

    def __init__(self, body: Encoder, heads: Iterable[nn.Module]):
        super().__init__()
        self.body, self.heads = body, nn.ModuleList(heads)

    def forward(
        self, ids: Tensor, mask: Tensor, segments: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        batch = Sequences(ids, mask.sum(1), segments)
        hidden = self.body.encode(batch)
        return tuple(head(hidden, batch) for head in self.heads)


def _encoder_graph(source: ExportSource) -> Graph:
    names, body = ["input_ids", "attention_mask"], source.body
    _check_inputs(source)
    if body.segment_types > 1:
        names.append("token_type_ids")
    ids = torch.zeros(2, EXAMPLE, dtype=torch.long)
    inputs = (ids, torch.ones_like(ids), torch.zeros_like(ids))[: len(names)]
    outputs = _outputs(source)
    module = EncoderOutputs(body, outputs.values())
    return Graph("model", module, inputs, names, (TARGETS,) * len(names), [*outputs])


def _check_inputs(source: ExportSource) -> None:
    """Check that ids and segments are all that an encoder reads, at every length in one way, and
    not token by token.

    Raises:
        ConfigError: they are not.
    """
    body, config = source.body, source.body.config
    read = body.complete(source.batch, source.tokenizer).extras.keys() - source.batch.extras.keys()
    if read:
        reason = f"has inputs for ids and segments alone, but {type(body).__name__} reads "
        raise source.unsupported(reason + ", ".join(sorted(read)) + " of tokens, too")
    if any(isinstance(part, RecurrentLayer) for part in source.model.modules()):
        raise source.unsupported("is given no graph of recurrent layers")
    if isinstance(body, BigBird) and config.attention != "full":
        if config.full_length < config.max_length:
            hint = 'Write "attention_type": "original_full" into config.json.'
            raise source.unsupported("is given no graph of sparse attention", hint)


def _outputs(source: ExportSource) -> dict[str, nn.Module]:
    """What gives each output of an encoder, by the names that other libraries have for them: hidden
    states where no head of a task reads them.
    """
    of_task = [kind for kind in source.heads if kind != "pooler"]
    named: dict[str, nn.Module] = {} if of_task else {"last_hidden_state": HiddenStates()}
    for kind, head in source.heads.items():
        logits = f"{kind}_logits" if len(of_task) > 1 else "logits"
        named["pooler_output" if kind == "pooler" else logits] = head
    return named


class OfModel(nn.Module):
    """What one call of a model computes, as a module."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model


class DecoderStep(OfModel):
    """Logits of what follows each of the ids (B, T), and keys and values of all tokens."""

    def forward(self, ids: Tensor, past: list[Tensor]) -> tuple[Tensor, ...]:
        cache = GraphCache(past)
        return (self.model.step(ids, cache)[0], *cache.grown)


def _decoder_graph(model: LanguageModel) -> Graph:
    past = _past_of(model.empty(1))
    ids = torch.zeros(2, EXAMPLE, dtype=torch.long)
    names, present = _cache_names(len(past))
    axes = (TARGETS, [PAST] * len(past))
    return Graph(
        "model", DecoderStep(model), (ids, past), ["input_ids", *names], axes, ["logits", *present]
    )


def _past_of(cache: KeyValueCache) -> list[Tensor]:
    """Keys and values of an example, of each layer, (2, H, 4, K)."""
    _, layers, heads, _, width = cache.keys.shape
    return [torch.zeros(2, heads, EXAMPLE_PAST, width) for _ in range(2 * layers)]


def _cache_names(count: int) -> tuple[list[str], list[str]]:
    """Of the keys and values before a call, and after it."""
    kinds = [f"{layer}.{kind}" for layer in range(count // 2) for kind in ("key", "value")]
    return [f"past_key_values.{kind}" for kind in kinds], [f"present.{kind}" for kind in kinds]


class SourceKeysAndValues(OfModel):
    """What the decoder's layers read of sources padded on the right."""

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        memory = self.model.encode(Sequences(ids, mask.sum(1)))
        read = [block.cross.read(memory) for block in self.model.decoder]
        return tuple(part for memory in read for part in (memory.key, memory.value))


def _encoder_side(model: Transformer | T5) -> Graph:
    ids = torch.zeros(2, EXAMPLE, dtype=torch.long)
    outputs = _source_names(2 * model.config.decoder_layers)
    names = ["input_ids", "attention_mask"]
    module = SourceKeysAndValues(model)
    return Graph("encoder", module, (ids, torch.ones_like(ids)), names, (SOURCES,) * 2, outputs)


def _source_names(count: int) -> list[str]:
    return [name.replace("past_key_values", "source") for name in _cache_names(count)[0]]


class TargetStep(OfModel):
    """A step of a decoder whose sources were read."""

    def forward(
        self, ids: Tensor, mask: Tensor, read: list[Tensor], past: list[Tensor]
    ) -> tuple[Tensor, ...]:
        cache, source = GraphCache(past), GraphSource(read, mask)
        state = TransformerState(cache, source)  # type: ignore[arg-type]
        return (self.model.step(ids, state)[0], *cache.grown)


def _decoder_side(model: Transformer | T5, state: TransformerState) -> Graph:
    past = _past_of(state.cache)
    _, layers, heads, _, width = state.source.keys.shape
    read = [torch.zeros(2, heads, 5, width) for _ in range(2 * layers)]
    ids, mask = torch.zeros(2, EXAMPLE, dtype=torch.long), torch.ones(2, 5, dtype=torch.long)
    names, present = _cache_names(len(past))
    return Graph(
        "decoder",
        TargetStep(model),
        (ids, mask, read, past),
        ["input_ids", "source_attention_mask", *_source_names(len(read)), *names],
        (TARGETS, SOURCES, [OF_SOURCE] * len(read), [PAST] * len(past)),
        ["logits", *present],
    )


# ----------------------------------------------------------------------------------- writing


def _write(source: ExportSource, graph: Graph, out: Path) -> None:
    """One file, by tracing its module.

    Raises:
        ConfigError: the model does what no graph can.
    """
    _prepare(graph.module, source.body.config.max_length)
    try:
        with torch.no_grad(), ops.reference(), _silent(), gathered_positions(graph.module):
            program: Any = torch.onnx.export(
                graph.module.eval(),
                graph.inputs,
                dynamo=True,
                verbose=False,
                input_names=graph.names,
                output_names=graph.outputs,
                dynamic_shapes=graph.axes,
            )
    except RegardError:
        raise
    except Exception as error:  # torch raises many kinds
        message = next((line for line in str(error.__cause__ or error).splitlines() if line), "")
        reason = f"is given no graph, for torch cannot trace {type(source.body).__name__}"
        raise source.unsupported(f"{reason} ({message:.200})") from error
    program.save(out / f"{graph.name}.onnx")


def _prepare(module: nn.Module, limit: int | None) -> None:
    """Make tables as long as they can get: those of a graph do not grow."""
    for part in module.modules():
        if isinstance(part, SinusoidalPositions) and limit:
            part.reserve(limit)
        if isinstance(part, RelativeBias) and not isinstance(part.bucket, BucketTable):
            part.bucket = BucketTable(part)


@contextmanager
def _silent() -> Iterator[None]:
    """Without torch's notes on packages that it does not need and on names of axes."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


# ----------------------------------------------------------------------------------- comparison


class Session:
    """A file that ONNX Runtime has opened."""

    def __init__(self, path: Path):
        runtime = package("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.session = runtime.InferenceSession(str(path), options)
        self.inputs = {node.name: node for node in self.session.get_inputs()}

    def run(self, *inputs: Tensor | np.ndarray) -> list[np.ndarray]:
        """The outputs for inputs in the order of the graph."""
        arrays = (value.numpy() if isinstance(value, Tensor) else value for value in inputs)
        outputs: list[np.ndarray] = self.session.run(
            None, dict(zip(self.inputs, arrays, strict=False))
        )
        return outputs

    def no_past(self, count: int) -> list[np.ndarray]:
        """Keys and values of no token, for `count` sequences."""
        past = [node for name, node in self.inputs.items() if name.startswith("past_key_values")]
        return [np.zeros((count, node.shape[1], 0, node.shape[3]), np.float32) for node in past]

    def in_two_calls(self, ids: Tensor, *others: Tensor | np.ndarray) -> np.ndarray:
        """Logits (B, T, V) of ids: those of the second half continue the keys of the first."""
        half = ids.size(1) // 2
        first, *past = self.run(ids[:, :half], *others, *self.no_past(len(ids)))
        second, *_ = self.run(ids[:, half:], *others, *past)
        return np.concatenate([first, second], 1)


def _compare_encoder(source: ExportSource, session: Session) -> tuple[Difference, ...]:
    batch = source.batch
    segments = batch.segments if source.body.segment_types > 1 else None
    batch = Sequences(batch.ids, batch.lengths, segments)
    inputs = [batch.ids, batch.keep.long(), *([] if segments is None else [segments])]
    hidden = source.body.encode(batch)
    differences = []
    for (name, head), their in zip(_outputs(source).items(), session.run(*inputs), strict=True):
        ours = head(hidden, batch)
        of_tokens = ours.shape[:2] == batch.ids.shape
        keep = batch.keep if of_tokens else torch.ones(len(ours), dtype=torch.bool)
        differences.append(Difference.between(name, ours[keep], torch.from_numpy(their)[keep]))
    return tuple(differences)


def _compare_both(source: ExportSource, encoder: Session, decoder: Session) -> Difference:
    model, batch = source.body, source.batch
    mask = batch.keep.long()
    targets = torch.tensor([[model.config.bos, *row] for row in source.targets])
    read = encoder.run(batch.ids, mask)
    theirs = decoder.in_two_calls(targets, mask, *read)
    ours = model.head.logits(model(batch, Sequences.full(targets)).hidden)
    return Difference.between("logits", ours, theirs)
