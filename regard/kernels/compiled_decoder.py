"""A decoder's steps in compiled calls: all of a step, or at least its blocks.

Where somebody looks at the attention or weighs its heads, in training, and where a model does what
no operation does, the model's own code runs on the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.gates import gating
from regard.attention.tap import listening
from regard.decoding.compiled_search import SearchPlan
from regard.kernels import build
from regard.kernels.beams import SearchResult
from regard.kernels.program import Program, readable
from regard.kernels.tracer import (
    POSITIONS,
    CannotRecord,
    Given,
    GivenTokens,
    InputRecorder,
    Recorded,
    Recorder,
    Recording,
    StandIn,
    Symbol,
    keeping,
    symbols_alone,
    table_of,
)
from regard.layers.quantized import QuantizedSoftmax
from regard.models.blocks import Blocks
from regard.ops import TopKTokens
from regard.state import KeyValueCache, SourceMemory

MOST = 512  # tokens of all rows that pass a program together: what they make stays in the cache


class FastBlocks(Recorded, Blocks):
    """`Blocks` whose steps are calls of the compiled kernels, where that can be.

    programs: of the blocks, and of whole steps.
    """

    remembered = torch.float16  # as precise as the rest, and half as much to read

    def __init__(self, blocks: Iterable[nn.Module] | None = None):
        super().__init__(blocks)
        self.programs = {}

    def decode(
        self, hidden: Tensor, cache: KeyValueCache, source: SourceMemory | None = None
    ) -> Tensor:
        """See `Blocks.decode`."""
        parts = self._parts(hidden, cache, source, _whole)
        if parts is None:
            return super().decode(hidden, cache, source)
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def fill(self, hidden: Tensor, cache: KeyValueCache) -> None:
        """See `Blocks.fill`."""
        if self._parts(hidden, cache, None, keeping) is None:
            super().fill(hidden, cache)

    def _parts(
        self,
        hidden: Tensor,
        cache: KeyValueCache,
        source: SourceMemory | None,
        part_of: Callable[[Recording], Recording],
    ) -> list[Tensor] | None:
        """What a part of the blocks' program makes of the hidden states, some tokens after the
        other; None where there is no program.
        """
        library = build.kernels() if self._simple(hidden, cache, source) else None
        program = None
        if library is not None:
            program = self._program(hidden.size(-1), source is not None, part_of)
        if program is None:
            return None
        parts = []
        for part in hidden.split(max(1, MOST // max(1, hidden.size(0))), dim=1):
            parts.append(program.decode(library, part, cache, source))
            cache = cache.advance(part.size(1))
        return parts

    def read(
        self, hidden: Tensor, lengths: Tensor, source: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """See `Blocks.read`; some rows after the other, so that what they make stays in caches."""
        if source is not None or not hidden.numel() or build.kernels() is None:
            return super().read(hidden, lengths, source)
        attentions: list[Any] = [block.attention for block in self]
        heads, head_dim = max(one.heads for one in attentions), attentions[0].head_dim
        parts = []
        for part in hidden.split(max(1, MOST // hidden.size(1))):
            cache = self.cache(part.size(0), heads, head_dim, part).reserve(part.size(1))
            if not self._simple(part, cache, None):
                return super().read(hidden, lengths)
            if self._program(part.size(-1), False, _whole) is None:
                return super().read(hidden, lengths)
            parts.append(self.decode(part, cache))
        return torch.cat(parts)

    def _simple(self, hidden: Tensor, cache: KeyValueCache, source: SourceMemory | None) -> bool:
        return (
            hidden.dtype == torch.float32
            and hidden.device.type == "cpu"
            and not hidden.requires_grad
            and plain(self, cache, source)
        )

    def _program(
        self, width: int, cross: bool, part_of: Callable[[Recording], Recording]
    ) -> Program | None:
        def record() -> Program:
            return Program(part_of(Recorder(width).of_blocks(self, cross=cross)))

        return self.recorded((width, cross, part_of), record)


def _whole(recording: Recording) -> Recording:
    return recording


def plain(blocks: nn.Module, cache: KeyValueCache, source: SourceMemory | None) -> bool:
    """Whether compiled kernels may do what these blocks would."""
    return (
        not blocks.training
        and listening.get() is None
        and gating.get() is None
        and not torch.is_autocast_enabled("cpu")
        and readable(cache)
        and (source is None or readable(source))
    )


class Step:
    """In the place of a model's `step`: one compiled call, where that can be.

    The model's state is a `KeyValueCache`, or has one as `cache` and a `SourceMemory` as `source`.
    """

    def __init__(self, model: Any, blocks: FastBlocks):
        self.model, self.blocks = model, blocks
        self.positions = [part for part in model.modules() if isinstance(part, POSITIONS)]

    def __call__(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """See `regard.models.protocols.Generator`."""
        found = self._found(tokens, state, Program.step)
        return type(self.model).step(self.model, tokens, state) if found is None else found

    def leading(self, tokens: Tensor, state: Any, count: int) -> tuple[TopKTokens, Any] | None:
        """The `count` most probable words after each of the tokens (R, 1), and the state after
        them, as `words.leading` finds them among the scores of a step; None where it cannot.
        """
        return self._found(tokens, state, Program.leading, count)

    def beams(self, tokens: Tensor, state: Any, plan: SearchPlan) -> SearchResult | None:
        """A whole search from the first tokens (A, 1) on, which have read a source; None where that
        cannot be done in one call.
        """
        cache, source = _memories(state)
        few = tokens.numel() * plan.size <= MOST and tokens.numel() > 0
        if not few or source is None or source.sharing > 1 or cache.longest:
            return None
        library = build.kernels() if self._simple(tokens, (cache, source)) else None
        program = None if library is None else self._program(state)
        return None if program is None else program.beams(library, tokens, cache, source, plan)

    def _found(
        self, tokens: Tensor, state: Any, call: Callable[..., Any], *more: int
    ) -> tuple[Any, Any] | None:
        memories = _memories(state)
        library = build.kernels() if self._simple(tokens, memories) else None
        program = None if library is None else self._program(state)
        if program is None or program.end < memories[0].longest + tokens.size(1):
            return None
        cache = memories[0].reserve(tokens.size(1))
        found = call(program, library, tokens, cache, memories[1], *more)
        if found is None:
            return None
        after = cache.advance(tokens.size(1))
        return found, after if memories[1] is None else replace(state, cache=after)

    def _simple(self, tokens: Tensor, memories: tuple[Any, Any]) -> bool:
        return (
            tokens.numel() <= MOST
            and tokens.dtype == torch.int64
            and tokens.device.type == "cpu"
            and tokens.is_contiguous()
            and memories[0] is not None
            and tokens.size(0) == memories[0].rows
            and plain(self.blocks, *memories)
        )

    def _program(self, state: Any) -> Program | None:
        # Tables of positions may have grown.
        key = (type(state), *(table_of(positions).size(0) for positions in self.positions))
        return self.blocks.recorded(key, lambda: Program(recorded_step(self.model, state)))


def _memories(state: Any) -> tuple[Any, Any]:
    """The cache and the source's memory of a state; nothing where it is of another kind."""
    if type(state) is KeyValueCache:
        return state, None
    parts = vars(state)
    if parts.keys() == {"cache", "source"} and type(state.cache) is KeyValueCache:
        if type(state.source) is SourceMemory:
            return state.cache, state.source
    return None, None


# -------------------------------------------------------------------------- what is recorded


class GivenCache:
    """A cache that a step makes room in, passes on and advances once."""

    def __init__(self, count: Given, *, even: bool):
        self.count, self.even, self.longest = count, even, Given()
        self.places, self.after = Given(), Given()

    def reserve(self, count: Given) -> GivenCache:
        return self._when(count, self)

    def positions(self, count: Given) -> Given:
        return self._when(count, self.places)

    def advance(self, count: Given) -> Given:
        return self._when(count, self.after)

    def _when(self, count: Given, answer: Any) -> Any:
        if count is not self.count:
            raise CannotRecord("another count than that of the tokens")
        return answer


class StepRecorder(InputRecorder):
    """Of all that a model's `step` does."""

    def __init__(self, *, even: bool):
        super().__init__(0)
        self.tokens = GivenTokens()
        self.cache, self.source = GivenCache(self.tokens.count, even=even), Given()

    def of_step(self, model: Any, state: Any) -> Recording:
        """A step from a state like this.

        Raises:
            CannotRecord: it does something that has no operation.
        """
        alone = type(state) is KeyValueCache
        begun = self.cache if alone else replace(state, cache=self.cache, source=self.source)
        with symbols_alone():
            scores, after = type(model).step(self.twin(model), self.tokens, begun)
            if not alone and (type(after) is not type(state) or after.source is not self.source):
                raise CannotRecord("a state of another kind")
            if (after if alone else after.cache) is not self.cache.after:
                raise CannotRecord("a cache that is not advanced once")
        return self.finished(scores)

    def stand_in(self, module: nn.Module) -> StandIn:
        """See `Recorder.stand_in`."""
        if isinstance(module, Blocks):
            return StandIn(self.unknown, decode=partial(self._decode, module))
        if isinstance(module, POSITIONS):
            call, at = partial(self.places, module), partial(self._places_at, module)
            return StandIn(call, at=at)
        if isinstance(module, QuantizedSoftmax):
            return StandIn(self.unknown, logits=partial(self.linear, module))
        return super().stand_in(module)

    def _decode(self, blocks: Blocks, hidden: Any, cache: Any, source: Any = None) -> Symbol:
        if cache is not self.cache or source not in (None, self.source):
            raise CannotRecord("a cache or a memory of its own")
        return self.blocks(blocks, hidden, cross=source is not None)

    def which(self, asked: Any) -> int:
        """See `InputRecorder.which`: there is one kind."""
        if asked is not self.tokens:
            raise CannotRecord("tokens of its own")
        return 0

    def check_places(self, count: Any, start: Any) -> None:
        """See `InputRecorder.check_places`."""
        if count is not self.tokens.count or start is not self.cache.longest:
            raise CannotRecord("positions of its own")

    def _places_at(self, positions: Any, places: Any, end: Any) -> Symbol:
        if places is not self.cache.places:
            raise CannotRecord("positions of its own")
        return self.places(positions, self.tokens.count, self.cache.longest)


def recorded_step(model: Any, state: Any) -> Recording:
    """A model's step, which does the same whether rows have one length or several.

    Raises:
        CannotRecord: it does something else.
    """
    even, uneven = (StepRecorder(even=even).of_step(model, state) for even in (True, False))
    if not even.same(uneven):
        raise CannotRecord("rows of different lengths are treated in another way")
    return even
