"""Hidden states of texts without padding, one after the other, in one compiled call.

Each token attends to its whole text and to nothing else; the states of a text do not depend on the
other texts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from regard.data.batches import Sequences
from regard.kernels import build
from regard.kernels.arguments import address, contiguous, is_cpu_strided, optional_address
from regard.kernels.leaves import IDS, SEGMENTS, lowering_of
from regard.kernels.op_list import EMBEDDING, TABLE, Op, OpList
from regard.kernels.products import threads_for
from regard.kernels.program import Program, agree, programs_of, tracer, wants_results_alone
from regard.kernels.tracer import LeafTracer
from regard.models.protocols import CrossAttentionModel, Encoder


class TextProgram(Program):
    """What a model does with whole texts, in one call."""

    def __init__(self, listed: OpList):
        super().__init__(listed)
        self.limits = [
            min((_rows(op) for op in listed.ops if _looks_up(op, kind)), default=sys.maxsize)
            for kind in (IDS, SEGMENTS)
        ]

    def takes(self, flat: Flat) -> bool:
        """Whether the tables have a row for every id, segment and position of these texts."""
        if flat.longest > self.end:
            return False
        for ids, limit in zip((flat.ids, flat.segments), self.limits, strict=True):
            if ids is not None and len(ids):
                low, high = ids.aminmax()
                if low < 0 or high >= limit:
                    return False
        return True

    def encode(self, library: Any, flat: Flat, hidden: Tensor | None = None) -> Tensor:
        """States (N, D) of texts, from those that the first block reads where they are given."""
        width = self.width
        shape, count = (flat.count, width), (flat.count,)
        out = torch.empty(shape) if hidden is None else contiguous(hidden.clone())
        if flat.count:
            library.regard_encode(
                *(self._address, address("hidden", out, torch.float32, shape), flat.count),
                optional_address("ids", flat.ids, torch.int64, count),
                optional_address("segments", flat.segments, torch.int64, count),
                address("starts", flat.starts, torch.int64, flat.starts.shape),
                *(flat.starts.numel() - 1, threads_for(flat.count * self._work)),
            )
        return out


def _looks_up(op: Op, kind: int) -> bool:
    return op.kind in (EMBEDDING, TABLE) and op.heads == kind


def _rows(op: Op) -> int:
    if op.table is not None:
        return op.table.size(0)
    assert op.matrix is not None
    return op.matrix.out_features


class Flat:
    """Texts without padding: ids and segments (N,); where each begins, and the end, (B + 1,)."""

    def __init__(self, batch: Sequences):
        self.keep = batch.keep
        self.ids = batch.ids[self.keep]
        self.segments = None if batch.segments is None else batch.segments[self.keep]
        self.starts = F.pad(batch.lengths.cumsum(0), (1, 0))
        self.count, self.longest = len(self.ids), batch.ids.size(1)

    def padded(self, states: Tensor) -> Tensor:
        """(N, D) -> (B, T, D), zeros at padding."""
        padded = states.new_zeros(*self.keep.shape, states.size(-1))
        padded[self.keep] = states
        return padded


class CompiledTexts:
    """Programs for one method of a model that gives hidden states of whole texts.

    Args:
        method: "encode", which gives the last states, or "states", which gives those of each layer.
    """

    def __init__(self, model: Encoder | CrossAttentionModel, method: str):
        self.model, self.method, self.programs = model, method, programs_of(model)

    def last(self, batch: Sequences) -> Tensor | None:
        """Hidden states of the last layer, (B, T, D); None where there is no program."""
        flat = self._flat(batch)
        program = None if flat is None else self._program(batch, flat, "last")
        if flat is None or program is None:
            return None
        return flat.padded(program.encode(build.kernels(), flat))

    def first(self, batch: Sequences) -> Tensor | None:
        """Of the first tokens alone, (B, 1, D); None where there is no program."""
        flat = self._flat(batch)
        program = None if flat is None else self._program(batch, flat, "first")
        if flat is None or program is None:
            return None
        return program.encode(build.kernels(), flat)[flat.starts[:-1], None]

    def each(self, batch: Sequences) -> tuple[Flat, Iterator[Tensor]] | None:
        """The embeddings and the states of each layer, (N, D) of the texts end to end; None where
        there is no program.
        """
        flat = self._flat(batch)
        program = None if flat is None else self._program(batch, flat, "layer 0")
        if flat is None or program is None:
            return None
        programs = [self._program(batch, flat, f"layer {n + 1}") for n in range(self._layers)]
        return (flat, _each(flat, [program, *programs])) if all(programs) else None

    @property
    def _layers(self) -> int:
        return self.model.config.layers

    def _flat(self, batch: Sequences) -> Flat | None:
        plain = (
            batch.layout is None
            and is_cpu_strided(batch.ids, torch.int64)
            and is_cpu_strided(batch.lengths, torch.int64)
            and (batch.segments is None or is_cpu_strided(batch.segments, torch.int64))
            and wants_results_alone(self.model)
        )
        return Flat(batch) if plain else None

    def _program(self, batch: Sequences, flat: Flat, part: str) -> TextProgram | None:
        key = self.method, part, batch.segments is None
        program: Any = self.programs.of(
            self.model,
            key,
            lambda: TextProgram(self._ops(part, batch.segments is not None)),
            lambda program: self._agrees(program, batch, part),
        )
        return program if program is not None and program.takes(flat) else None

    def _agrees(self, program: Any, batch: Sequences, part: str) -> bool:
        """Whether the first text has the states that the model's own code gives it."""
        length = int(batch.lengths[0]) if len(batch) else 0
        if not length or part not in ("last", "first"):
            return True
        segments = None if batch.segments is None else batch.segments[:1, :length]
        first = Sequences(batch.ids[:1, :length], batch.lengths[:1], segments)
        expected = self.model.encode(first)[0]
        flat = Flat(first)
        if not program.takes(flat):
            return True
        hidden = program.encode(build.kernels(), flat)
        return agree(hidden[:1], expected[:1]) if part == "first" else agree(hidden, expected)

    def _ops(self, part: str, has_segments: bool) -> OpList:
        def arguments(tracing: LeafTracer) -> list[Any]:
            names = ("tokens", "lengths", "segments", "layout")
            ids, lengths, segments, layout = (tracing.symbol(name) for name in names)
            of_batch = segments if has_segments else None
            batch = Sequences(ids, lengths, of_batch, layout=layout)  # type: ignore[arg-type]
            return [batch, tracing.symbol("subset")] if part == "first" else [batch]

        module = cast(nn.Module, self.model)
        graph = tracer(self.method, arguments).graph_of(module)
        result, start = _ends(graph, part)
        lowering = lowering_of(module)
        if start is not None:
            lowering.widths[0] = self.model.config.d_model
        return lowering.finished(lowering.lowered(graph, result, start))


def _ends(graph: fx.Graph, part: str) -> tuple[fx.Node, fx.Node | None]:
    """The node of the states that `part` names, and of those that they are computed from; None:
    from the batch.
    """
    outputs: Any = graph.output_node().args[0]
    if isinstance(outputs, fx.Node):
        return outputs, None
    if not part.startswith("layer"):
        return outputs[-1], None
    number = int(part.split()[1])
    return outputs[number], outputs[number - 1] if number else None


def _each(flat: Flat, programs: list[Any]) -> Iterator[Tensor]:
    library, states = build.kernels(), None
    for program in programs:
        states = program.encode(library, flat, states)
        yield states
