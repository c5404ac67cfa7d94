"""An encoder's blocks over texts that lie end to end, without padding, in one compiled call.

The program is recorded as that of a decoder is. Each token sees its whole text and nothing else,
and a text's states do not depend on the texts beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.gates import gating
from regard.attention.tap import listening
from regard.data.batches import Sequences
from regard.layers.blocks import Stack
from regard.layers.mixing import Layer
from regard.native import build
from regard.native.products import threads_for
from regard.native.program import Program
from regard.native.recorder import CannotRecord, Recorder

LAST = Layer(-1)


class TextRecorder(Recorder):
    """Of a block that reads whole texts, and remembers nothing."""

    def __init__(self, width: int):
        super().__init__(width)
        self.remember: Any = None

    def given(self, cross: bool) -> tuple[Any, ...]:
        """See `Recorder.given`."""
        return (self.allowed,)


class TextProgram(Program):
    """Blocks that pass whole texts in one call."""

    def encode(self, library: Any, hidden: Tensor, starts: Tensor) -> None:
        """States (N, D) in place; text i has the rows from starts[i] to starts[i + 1]."""
        library.regard_encode(
            *(self._address, hidden.data_ptr(), starts.data_ptr()),
            *(starts.numel() - 1, threads_for(hidden.size(0) * self._work)),
        )


class FastStack(Stack):
    """`Stack` in compiled calls, where that can be.

    Not where somebody looks at the attention or weighs its heads, nor in training.
    """

    places = 4096  # the kernels themselves keep together what stays in the caches

    def __init__(self, blocks: Iterable[nn.Module] | None = None):
        super().__init__(blocks)
        self._programs: dict[tuple[int, int, int], TextProgram | None] = {}

    def layers(self, hidden: Tensor, texts: Sequences) -> Iterator[Tensor]:
        """See `Stack.layers`; what stands in padding is zero."""
        parts = self._parts(hidden, 1)
        if parts is None:
            yield from super().layers(hidden, texts)
            return
        keep = texts.keep
        for states in _passed(parts, hidden[keep], texts.lengths):
            yield _padded(states, keep)

    def read(self, hidden: Tensor, texts: Sequences) -> Tensor:
        """See `Stack.read`."""
        parts = self._parts(hidden, len(self))
        if parts is None:
            return super().read(hidden, texts)
        keep = texts.keep
        (states,) = _passed(parts, hidden[keep], texts.lengths)
        return _padded(states, keep)

    def first(self, hidden: Tensor, texts: Sequences) -> Tensor:
        """See `Stack.first`."""
        parts = self._parts(hidden, len(self))
        if parts is None:
            return super().first(hidden, texts)
        (states,) = _passed(parts, hidden[texts.keep], texts.lengths)
        return states[_starts(texts.lengths)[:-1], None]

    def chosen(
        self, hidden: Tensor, texts: Sequences, choice: Callable[[Iterator[Tensor]], Tensor]
    ) -> Tensor:
        """See `Stack.chosen`."""
        parts = self._parts(hidden, len(self) if choice == LAST else 1)
        if parts is None:
            return super().chosen(hidden, texts, choice)
        flat = hidden[texts.keep]
        return choice(chain([flat], _passed(parts, flat, texts.lengths)))

    def _parts(self, hidden: Tensor, size: int) -> list[tuple[Any, TextProgram]] | None:
        """Programs of so many blocks each, one behind the other; None where there are none."""
        library = build.kernels() if self._simple(hidden) else None
        if library is None:
            return None
        found = []
        for first in range(0, len(self), size):
            program = self._program(first, size, hidden.size(-1))
            if program is None:
                return None
            found.append((library, program))
        return found

    def _program(self, first: int, size: int, width: int) -> TextProgram | None:
        key = (first, size, width)
        if key not in self._programs:
            try:
                blocks = list(self)[first : first + size]
                recording = TextRecorder(width).of_blocks(blocks, cross=False)
                self._programs[key] = TextProgram(recording)
            except CannotRecord:
                self._programs[key] = None
        return self._programs[key]

    def _simple(self, hidden: Tensor) -> bool:
        return (
            hidden.dtype == torch.float32
            and hidden.device.type == "cpu"
            and not hidden.requires_grad
            and not self.training
            and listening.get() is None
            and gating.get() is None
            and not torch.is_autocast_enabled("cpu")
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Weights that move have other addresses."""
        self._programs.clear()
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        """Copies have weights of their own."""
        return self.__dict__ | {"_programs": {}}


def _passed(
    parts: list[tuple[Any, TextProgram]], flat: Tensor, lengths: Tensor
) -> Iterator[Tensor]:
    """What each program gives, (N, D), from the states that the first one reads."""
    starts = _starts(lengths)
    for library, program in parts:
        flat = flat.clone(memory_format=torch.contiguous_format)
        program.encode(library, flat, starts)
        yield flat


def _starts(lengths: Tensor) -> Tensor:
    """Where texts of these lengths begin, and the end: (B + 1,)"""
    return F.pad(lengths.cumsum(0), (1, 0))


def _padded(flat: Tensor, keep: Tensor) -> Tensor:
    """(N, D) -> (B, T, D)"""
    padded = flat.new_zeros(*keep.shape, flat.size(-1))
    padded[keep] = flat
    return padded
