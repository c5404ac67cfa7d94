"""An encoder over texts that lie end to end, without padding, in one compiled call.

What it does is recorded as a decoder's steps are. Each token sees its whole text and nothing else,
and a text's states do not depend on the texts beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.gates import gating
from regard.attention.multihead import SelfAttention
from regard.attention.tap import listening
from regard.attention.unpadded import FirstToken
from regard.data.batches import Sequences
from regard.kernels import build
from regard.kernels.arguments import address, contiguous, is_cpu_strided, optional_address
from regard.kernels.products import threads_for
from regard.kernels.program import Program
from regard.kernels.tracer import (
    COUNTED,
    FIRST,
    LINES,
    POSITIONS,
    SELF_FIRST,
    TABLE,
    CannotRecord,
    GivenTokens,
    InputRecorder,
    Recorded,
    Recording,
    StandIn,
    Symbol,
    readable_table,
    symbols_alone,
    table_of,
)
from regard.layers.mixing import Layer
from regard.layers.quantized import QuantizedEmbedding
from regard.models.blocks import Chosen, Embed, Stack
from regard.positions import CountedPositions

LAST = Layer(-1)
IDS, SEGMENTS = range(2)  # what a table is asked for, as encoder.h has it
ONE = slice(None), slice(None, 1)  # `hidden[ONE]` is the first token of each text


@dataclass(frozen=True, eq=False)
class GivenTexts:
    """Texts of which a model passes on the ids and the segments."""

    ids: GivenTokens
    segments: GivenTokens


class TextRecorder(InputRecorder):
    """Of blocks that read whole texts and remember nothing, and of what comes before them."""

    def __init__(self, width: int):
        super().__init__(width)
        self.remember: Any = None
        self.texts = GivenTexts(GivenTokens(), GivenTokens())

    def of_texts(self, embed: Any, blocks: Several[Any], *, first: bool) -> Recording:
        """A model's method `embed`, or hidden states where it is None, and then blocks.

        first: of the last block only what it gives for the first token of each text.

        Raises:
            CannotRecord: something is done that has no operation.
        """
        hidden: Any = Symbol(self, 0)
        with symbols_alone():
            if embed is not None:
                hidden = embed.__func__(self.twin(embed.__self__), self.texts)
        whole = blocks[:-1] if first else blocks
        hidden = self.blocks(whole, hidden, cross=False)
        if first:
            with symbols_alone():
                hidden = self.twin(blocks[-1]).at(FirstToken(), hidden, self.allowed)
        return self.finished(hidden)

    def given(self, cross: bool) -> tuple[Any, ...]:
        """See `Recorder.given`."""
        return (self.allowed,)

    def stand_in(self, module: nn.Module) -> StandIn:
        """See `Recorder.stand_in`."""
        if isinstance(module, CountedPositions):
            return StandIn(self.unknown, of=partial(self._counted, module))
        if type(module) is SelfAttention:
            call = partial(self.self_attention, module)
            return StandIn(call, at=partial(self._attention_at, module))
        return super().stand_in(module)

    def which(self, asked: Any) -> int:
        """See `InputRecorder.which`."""
        if asked not in (self.texts.ids, self.texts.segments):
            raise CannotRecord("ids of its own")
        return IDS if asked is self.texts.ids else SEGMENTS

    def check_places(self, count: Any, start: Any) -> None:
        """See `InputRecorder.check_places`."""
        if count is not self.texts.ids.count or start != 0:
            raise CannotRecord("positions of its own")

    def chosen(self, symbol: Symbol, places: Any) -> Symbol:
        """See `Recorder.chosen`."""
        if places != ONE:
            raise CannotRecord("other tokens than the first are chosen")
        before = (op.target for op in self.ops if (op.kind, op.source) == (FIRST, symbol.register))
        known = next(before, None)
        return self.write(FIRST, symbol.width, symbol) if known is None else Symbol(self, known)

    def _counted(self, positions: CountedPositions, asked: Any) -> Symbol:
        if asked is not self.texts.ids:
            raise CannotRecord("ids of its own")
        table = readable_table(table_of(positions))
        return self.write(COUNTED, table.size(1), table=table, heads=IDS, layer=positions.pad)

    def _attention_at(
        self, attention: SelfAttention, some: Any, hidden: Any, allowed: Any
    ) -> Symbol:
        if not isinstance(some, FirstToken) or allowed is not self.allowed:
            raise CannotRecord("tokens or a mask of its own")
        projection, width = attention.query_key_value, attention.heads * attention.head_dim
        query = self.lines(projection, 0, width, some.of(hidden))
        joined = self.lines(projection, width, 3 * width, hidden)
        return self.attend(SELF_FIRST, attention, query, attention.score, other=joined.register)


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
        shape, whole = (flat.count, width), (flat.count,)
        out = torch.empty(shape) if hidden is None else contiguous(hidden.clone())
        if flat.count:
            library.regard_encode(
                *(self._address, address("hidden", out, torch.float32, shape), flat.count),
                optional_address("ids", flat.ids, torch.int64, whole),
                optional_address("segments", flat.segments, torch.int64, whole),
                address("starts", flat.starts, torch.int64, flat.starts.shape),
                *(flat.starts.numel() - 1, threads_for(flat.count * self._work)),
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


class FastStack(Recorded, Stack):
    """`Stack` in compiled calls, where that can be; what stands in padding is zero.

    Not where somebody looks at the attention or weighs its heads, nor in training.
    """

    places = 4096  # the kernels themselves keep together what stays in the caches

    def __init__(self, blocks: Iterable[nn.Module] | None = None):
        super().__init__(blocks)
        self.programs = {}

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
        # A block that cannot be cut so computes everything.
        states = self._last(embed, texts, flat, first=self._blocks(first=True) is not None)
        return states[flat.starts[:-1], None]

    def chosen(self, embed: Embed, texts: Sequences, choice: Chosen) -> Tensor:
        """See `Stack.chosen`."""
        if not self._simple(texts):
            return super().chosen(embed, texts, choice)
        flat = Flat(texts)
        if choice == LAST:
            return self._last(embed, texts, flat)
        return choice(self._each(embed, texts, flat))

    # ---- states of texts end to end, (N, D)

    def _last(self, embed: Embed, texts: Sequences, flat: Flat, first: bool = False) -> Tensor:
        program = self._program(embed, first=first)
        if program is not None and program.fits(flat):
            return program.encode(build.kernels(), flat)
        program = self._blocks(first=first)
        assert program is not None
        return program.encode(build.kernels(), flat, embed(texts)[flat.keep])

    def _each(self, embed: Embed, texts: Sequences, flat: Flat) -> Iterator[Tensor]:
        program, library = self._program(embed, 0, 0), build.kernels()
        fits = program is not None and program.fits(flat)
        states = program.encode(library, flat) if fits else embed(texts)[flat.keep]  # type: ignore
        yield states
        for at in range(len(self)):
            block = self._blocks(at, at + 1)
            assert block is not None  # for all blocks together are known
            states = block.encode(library, flat, states)
            yield states

    # ---- programs

    def _simple(self, texts: Sequences) -> bool:
        return (
            not self.training
            and is_cpu_strided(texts.ids, torch.int64)
            and is_cpu_strided(texts.lengths, torch.int64)
            and (texts.segments is None or is_cpu_strided(texts.segments, torch.int64))
            and listening.get() is None
            and gating.get() is None
            and not torch.is_autocast_enabled("cpu")
            and build.kernels() is not None
            and self._blocks() is not None
        )

    def _blocks(
        self, begin: int = 0, end: int | None = None, *, first: bool = False
    ) -> TextProgram | None:
        return self._program(None, begin, end, first=first)

    def _program(
        self, embed: Any, begin: int = 0, end: int | None = None, *, first: bool = False
    ) -> TextProgram | None:
        key: tuple[Any, ...] = (begin, end, first)
        if embed is not None:
            model = getattr(embed, "__self__", None)
            if not isinstance(model, nn.Module):
                return None
            key = (model, embed.__func__, *key, *_tables(model))
        return self.recorded(key, lambda: _program(embed, list(self)[begin:end], first))


def _tables(model: nn.Module) -> Iterator[tuple[int, int]]:
    """Where the tables of a model lie: those of positions may grow, others be replaced."""
    for part in model.children():
        if isinstance(part, POSITIONS):
            yield table_of(part).data_ptr(), table_of(part).size(0)
        elif isinstance(part, QuantizedEmbedding | nn.Embedding):
            yield part.weight.data_ptr(), part.weight.size(0)


def _program(embed: Any, blocks: list[nn.Module], first: bool) -> TextProgram:
    width = _width(blocks) if embed is None else 0
    return TextProgram(TextRecorder(width).of_texts(embed, blocks, first=first))


def _width(blocks: list[nn.Module]) -> int:
    """Of the states that blocks read; where this is wrong, they cannot be recorded."""
    parts = (part for block in blocks for part in block.modules())
    return next((part.normalized_shape[-1] for part in parts if isinstance(part, nn.LayerNorm)), 0)
