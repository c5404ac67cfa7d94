"""An encoder over texts that lie end to end, without padding, in one compiled call.

What it does is recorded as a decoder's steps are. Each token sees its whole text and nothing else,
and a text's states do not depend on the texts beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.gates import gating
from regard.attention.tap import listening
from regard.data.batches import Sequences
from regard.layers.blocks import Chosen, Embed, Stack
from regard.layers.mixing import Layer
from regard.layers.quantized import NarrowEmbedding
from regard.native import build
from regard.native.products import pointer, threads_for
from regard.native.program import Program
from regard.native.recorder import (
    LINES,
    PLACES,
    TABLE,
    CannotRecord,
    Given,
    Recorder,
    Recording,
    StandIn,
    Symbol,
    symbols_alone,
)
from regard.native.stepping import GivenTokens, readable_table, table_of
from regard.positions import LearnedPositions, SinusoidalPositions

LAST = Layer(-1)
POSITIONS = LearnedPositions, SinusoidalPositions
IDS, SEGMENTS = range(2)  # what a table is asked for, as encoder.h has it


@dataclass(frozen=True, eq=False)
class GivenTexts:
    """Texts of which a model passes on the ids and the segments."""

    ids: GivenTokens
    segments: GivenTokens


class TextRecorder(Recorder):
    """Of blocks that read whole texts and remember nothing, and of what comes before them."""

    def __init__(self, width: int):
        super().__init__(width)
        self.remember: Any = None
        self.texts = GivenTexts(GivenTokens(), GivenTokens())

    def of_texts(self, embed: Any, blocks: Iterable[nn.Module]) -> Recording:
        """A model's method `embed`, and then blocks.

        Raises:
            CannotRecord: something is done that has no operation.
        """
        with symbols_alone():
            hidden = embed.__func__(self.twin(embed.__self__), self.texts)
        return self.finished(self.blocks(blocks, hidden, cross=False))

    def given(self, cross: bool) -> tuple[Any, ...]:
        """See `Recorder.given`."""
        return (self.allowed,)

    def stand_in(self, module: nn.Module) -> StandIn:
        """See `Recorder.stand_in`."""
        if isinstance(module, POSITIONS):
            return StandIn(partial(self._places, module))
        if isinstance(module, NarrowEmbedding | nn.Embedding):
            return StandIn(partial(self._embedding, module))
        return super().stand_in(module)

    def _embedding(self, embedding: Any, asked: Any) -> Symbol:
        if asked not in (self.texts.ids, self.texts.segments):
            raise CannotRecord("ids of its own")
        which = IDS if asked is self.texts.ids else SEGMENTS
        if isinstance(embedding, NarrowEmbedding):
            return self.write(LINES, embedding.matrix.columns, matrix=embedding.matrix, heads=which)
        table = readable_table(embedding.weight)
        return self.write(TABLE, table.size(1), table=table, heads=which)

    def _places(self, positions: Any, count: Given) -> Symbol:
        if count is not self.texts.ids.count:
            raise CannotRecord("positions of its own")
        table = readable_table(table_of(positions))
        return self.write(PLACES, table.size(1), table=table)


class TextProgram(Program):
    """What was recorded of an encoder, in one call."""

    def __init__(self, recording: Recording):
        super().__init__(recording)
        asked = [op for op in recording.ops if op.kind in (LINES, TABLE)]
        self.limits = [
            min((_lines(op) for op in asked if op.heads == which), default=sys.maxsize)
            for which in (IDS, SEGMENTS)
        ]

    def fits(self, flat: Flat) -> bool:
        """Whether the tables have a line for everything that these texts ask for."""
        if flat.longest > self.end:
            return False
        for asked, limit in zip((flat.ids, flat.segments), self.limits, strict=True):
            if asked is not None and len(asked):
                least, most = asked.aminmax()
                if least < 0 or most >= limit:
                    return False
        return True

    def encode(self, library: Any, flat: Flat, hidden: Tensor | None = None) -> Tensor:
        """States (N, D) of texts, from those that the first block reads where they are given."""
        width = self.width
        out = torch.empty(flat.count, width) if hidden is None else hidden.clone()
        if flat.count:
            library.regard_encode(
                *(self._address, out.data_ptr(), pointer(flat.ids), pointer(flat.segments)),
                *(flat.starts.data_ptr(), flat.starts.numel() - 1),
                threads_for(flat.count * self._work),
            )
        return out


def _lines(op: Any) -> int:
    return op.matrix.lines if op.table is None else op.table.size(0)


class Flat:
    """Texts end to end: ids and segments (N,), and where each begins, and the end, (B + 1,)."""

    def __init__(self, texts: Sequences):
        self.keep = texts.keep
        self.ids = texts.ids[self.keep]
        self.segments = None if texts.segments is None else texts.segments[self.keep]
        self.starts = F.pad(texts.lengths.cumsum(0), (1, 0))
        self.count, self.longest = len(self.ids), texts.ids.size(1)

    def padded(self, states: Tensor) -> Tensor:
        """(N, D) -> (B, T, D)"""
        padded = states.new_zeros(*self.keep.shape, states.size(-1))
        padded[self.keep] = states
        return padded


class FastStack(Stack):
    """`Stack` in compiled calls, where that can be; what stands in padding is zero.

    Not where somebody looks at the attention or weighs its heads, nor in training.
    """

    places = 4096  # the kernels themselves keep together what stays in the caches

    def __init__(self, blocks: Iterable[nn.Module] | None = None):
        super().__init__(blocks)
        self._programs: dict[Any, TextProgram | None] = {}

    def layers(self, embed: Embed, texts: Sequences) -> Iterator[Tensor]:
        """See `Stack.layers`."""
        if not self._simple(texts):
            yield from super().layers(embed, texts)
            return
        flat = Flat(texts)
        for states in self._each(embed, texts, flat):
            yield flat.padded(states)

    def read(self, embed: Embed, texts: Sequences) -> Tensor:
        """See `Stack.read`."""
        if not self._simple(texts):
            return super().read(embed, texts)
        flat = Flat(texts)
        return flat.padded(self._last(embed, texts, flat))

    def first(self, embed: Embed, texts: Sequences) -> Tensor:
        """See `Stack.first`."""
        if not self._simple(texts):
            return super().first(embed, texts)
        flat = Flat(texts)
        return self._last(embed, texts, flat)[flat.starts[:-1], None]

    def chosen(self, embed: Embed, texts: Sequences, choice: Chosen) -> Tensor:
        """See `Stack.chosen`."""
        if not self._simple(texts):
            return super().chosen(embed, texts, choice)
        flat = Flat(texts)
        if choice == LAST:
            return self._last(embed, texts, flat)
        return choice(self._each(embed, texts, flat))

    # ---- states of texts end to end, (N, D)

    def _last(self, embed: Embed, texts: Sequences, flat: Flat) -> Tensor:
        program = self._program(embed, 0, len(self))
        if program is not None and program.fits(flat):
            return program.encode(build.kernels(), flat)
        hidden = embed(texts)[flat.keep]
        return self._blocks(0, len(self)).encode(build.kernels(), flat, hidden)

    def _each(self, embed: Embed, texts: Sequences, flat: Flat) -> Iterator[Tensor]:
        program, library = self._program(embed, 0, 0), build.kernels()
        fits = program is not None and program.fits(flat)
        states = program.encode(library, flat) if fits else embed(texts)[flat.keep]  # type: ignore
        yield states
        for block in range(len(self)):
            states = self._blocks(block, block + 1).encode(library, flat, states)
            yield states

    # ---- programs

    def _simple(self, texts: Sequences) -> bool:
        return (
            not self.training
            and texts.ids.dtype == torch.int64
            and texts.ids.device.type == "cpu"
            and listening.get() is None
            and gating.get() is None
            and not torch.is_autocast_enabled("cpu")
            and build.kernels() is not None
            and self._program(None, 0, len(self)) is not None
        )

    def _blocks(self, first: int, last: int) -> TextProgram:
        program = self._program(None, first, last)
        assert program is not None  # for all blocks are known
        return program

    def _program(self, embed: Any, first: int, last: int) -> TextProgram | None:
        key: tuple[Any, ...] = (first, last)
        if embed is not None:
            model = getattr(embed, "__self__", None)
            if not isinstance(model, nn.Module):
                return None
            key = (model, embed.__func__, first, last, *_tables(model))
        if key not in self._programs:
            self._programs[key] = _recorded(embed, list(self)[first:last])
        return self._programs[key]

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Weights that move have other addresses."""
        self._programs.clear()
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        """Weights may be given away for others."""
        self._programs.clear()
        super()._load_from_state_dict(*arguments)

    def __getstate__(self) -> dict[str, Any]:
        """Copies have weights of their own."""
        return self.__dict__ | {"_programs": {}}


def _tables(model: nn.Module) -> Iterator[tuple[int, int]]:
    """Where the tables of a model lie: those of positions may grow, others be replaced."""
    for part in model.children():
        if isinstance(part, POSITIONS):
            yield table_of(part).data_ptr(), table_of(part).size(0)
        elif isinstance(part, NarrowEmbedding | nn.Embedding):
            yield part.weight.data_ptr(), part.weight.size(0)


def _recorded(embed: Any, blocks: list[nn.Module]) -> TextProgram | None:
    try:
        if embed is not None:
            recording = TextRecorder(0).of_texts(embed, blocks)
        else:
            recording = TextRecorder(_width(blocks)).of_blocks(blocks, cross=False)
        return TextProgram(recording)
    except CannotRecord:
        return None


def _width(blocks: list[nn.Module]) -> int:
    """Of the states that blocks read; where this is wrong, they cannot be recorded."""
    parts = (part for block in blocks for part in block.modules())
    return next((part.normalized_shape[-1] for part in parts if isinstance(part, nn.LayerNorm)), 0)
