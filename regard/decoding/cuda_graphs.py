"""A decoder's steps on a GPU, recorded once and replayed: CUDA graphs.

Launching a kernel takes the processor longer than most kernels of a step take the GPU. A graph is
launched as one, but it has fixed shapes and addresses. So states are copied to buffers at fixed
addresses: the numbers of sequences and positions are rounded up to powers of two, masks hide the
rest, and the lengths of the sequences are on the device.

The state that is returned equals that of the model's own `step` and lies in a buffer; every method
of decoding uses it like any other. The buffer is free again when nothing refers to that state.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention.cache import KeyValueCache, SourceMemory
from regard.attention.capture import captured_or_gated
from regard.errors import warn
from regard.models.wrappers import GeneratorWrapper, generator
from regard.state import State, TokensRead

DEVICES = ("cuda",)  # where steps are replayed
ROOM = 32  # positions of the smallest buffer
BUFFERS = 12  # that a model has at most
OWN = 4  # steps of a shape that the model makes itself: to record one takes longer than these
WARM = 2  # passes before a recording, in which libraries choose their kernels
# How far a replayed step may be from the model's own, of the greatest score.
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3}

Tensors = dict[str, Tensor]
Run = Callable[[], tuple[Tensor, Tensors]]
# Of a state, by dotted name: caches, counts of tokens, memories of sources, tensors
Parts = dict[str, Any]


class CannotReplay(Exception):
    """A step that is no matter of fixed shapes alone."""


class Graphed(GeneratorWrapper):
    """A generator around a model on a GPU: its steps are replayed where that can be.

    They are the model's own in training, where gradients are wanted, where attention is captured or
    heads are gated, and where the state is of a kind that is not known here.
    """

    model: Any  # a generator that is an `nn.Module`

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, Any]:
        if tokens.device.type not in DEVICES:
            return self.model.step(tokens, state)
        with _lock:
            if self.model not in _replays:
                _replays[self.model] = CapturedSteps()
        return _replays[self.model].step(self.model, tokens, state)

    def train(self, mode: bool = True) -> Self:
        """As of the model; its training takes the memory of recorded steps."""
        if mode:
            forget(self.model)
        return super().train(mode)


def _fits(model: object) -> bool:
    """Whether a model is on a GPU."""
    if not isinstance(model, nn.Module):
        return False
    first = next(itertools.chain(model.parameters(), model.buffers()), None)
    return first is not None and first.device.type in DEVICES


ops.register(generator, "cuda_graphs", Graphed, when=_fits)


def forget(model: nn.Module) -> None:
    """Give up the memory of recorded steps, as for a training that goes on."""
    if model in _replays:
        _replays[model].buffers.clear()


_replays: weakref.WeakKeyDictionary[object, CapturedSteps] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


# ------------------------------------------------------------------------------------- recording


def recorded(run: Run, device: torch.device) -> tuple[Callable[[], None], Tensor, Tensors]:
    """What repeats the work of `run` on a GPU, and where its results then lie.

    Raises:
        RuntimeError: something in it cannot be recorded.
    """
    with torch.cuda.device(device):
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM):
                run()
        current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with _own_workspaces():
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                scores, tensors = run()
    return graph.replay, scores, tensors


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """A graph that is captured inside has cuBLAS's workspaces in its own memory.

    It reads them at the addresses of its capture. Workspaces that were there before are freed when
    any other graph is (pytorch/pytorch#193402), and the graph would then read unmapped memory.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


# --------------------------------------------------------------------------- the parts of a state


def parts_of(state: State, prefix: str = "") -> Parts:
    """What a state consists of.

    Raises:
        CannotReplay: it holds something else, such as a number that a recording would not see.
    """
    if type(state) in (KeyValueCache, IndirectKVCache):
        return {prefix: state}
    if not isinstance(state, State):
        raise CannotReplay(f"a state of the kind {type(state).__name__}")
    parts: Parts = {}
    for name, value in state.parts().items():
        name = f"{prefix}.{name}"
        if isinstance(value, Tensor) or type(value) in (SourceMemory, TokensRead):
            parts[name] = value
        else:
            parts |= parts_of(value, name)
    return parts


def with_parts(state: State, parts: Parts, prefix: str = "") -> Any:
    """The same kind of state, of other parts."""
    if prefix in parts:
        return parts[prefix]
    inner = state.parts().items()
    return replace(state, **{n: with_parts(part, parts, f"{prefix}.{n}") for n, part in inner})


def _unused(parts: Parts) -> Parts:
    """The same parts for one more step: a state may be used once."""
    return {n: replace(p) if isinstance(p, KeyValueCache) else p for n, p in parts.items()}


def _only(parts: Parts, kind: type) -> Any:
    """The part of this kind; None where there is none.

    Raises:
        CannotReplay: there are several.
    """
    matching = [part for part in parts.values() if isinstance(part, kind)]
    if len(matching) > 1:
        raise CannotReplay(f"several parts of the kind {kind.__name__}")
    return matching[0] if matching else None


def _rounded(count: int, least: int = 1) -> int:
    """The next power of two."""
    return max(least, 1 << (count - 1).bit_length())


# -------------------------------------------------------------------------------------- buffers


class IndirectKVCache(KeyValueCache):
    """A cache that is read through its table."""

    def materialize(self) -> None:
        """It stays."""

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        super().write(layer, key, value)
        at, heads = torch.arange(self.keys.size(3), device=key.device), slice(key.size(1))

        def read(lines: Tensor) -> Tensor:
            gathered = lines[:, layer, heads][self.origin, :, at]  # (B, C, H, K)
            return gathered.transpose(1, 2).to(key)

        return read(self.keys), read(self.values)


class Source:
    """Fixed memory for what is read of sources: `rows` sentences, each read by `sharing` rows."""

    def __init__(self, like: SourceMemory, rows: int, width: int):
        keys, values = (_empty_like(tensor, rows, width) for tensor in (like.keys, like.values))
        lengths = like.lengths.new_ones(rows)
        self.memory = SourceMemory(keys, values, lengths, like.sharing)
        self._holds: tuple[Any, Any] = (lambda: None, lambda: None)

    def fill(self, source: SourceMemory) -> None:
        """Take what there is to read, if it is not here yet."""
        source.materialize()
        if self._holds[0]() is source.keys and self._holds[1]() is source.lengths:
            return
        count, width = source.keys.size(0), source.keys.size(3)
        for target, values in (
            (self.memory.keys, source.keys),
            (self.memory.values, source.values),
        ):
            target.zero_()  # NaN at a masked position would still give NaN
            target[:count, :, :, :width] = values
        self.memory.lengths.fill_(1)
        self.memory.lengths[:count] = source.lengths
        self._holds = weakref.ref(source.keys), weakref.ref(source.lengths)


def _empty_like(like: Tensor, rows: int, width: int) -> Tensor:
    """(rows, L, H, width, K) of zeros, as keys or values (N, L, H, S, K)."""
    _, layers, heads, _, head_dim = like.shape
    return like.new_zeros(rows, layers, heads, width, head_dim)


@dataclass
class CapturedStep:
    """A recorded step: where it reads and writes, and what starts it.

    `tables` are those of positions, kept for it where the model makes longer ones.
    """

    tokens: Tensor
    parts: Parts
    tables: list[Tensor]
    start: Callable[[], None]
    scores: Tensor
    left: Tensors


class GraphBuffer:
    """Fixed memory for states of one kind, of so many rows (`lines`) and positions (`room`)."""

    def __init__(self, kind: Any, cache: KeyValueCache | None, lines: int, room: int):
        self.kind, self.lines, self.room = kind, lines, room
        self.cache: KeyValueCache | None = None
        if cache is not None:
            _, layers, heads, _, head_dim = cache.keys.shape
            self.cache = KeyValueCache.empty(
                lines, layers, heads, head_dim, capacity=room, like=cache.keys
            )
        self.sources: dict[Any, Source] = {}
        self.replays: dict[Any, CapturedStep] = {}
        self._lent: Any = lambda: None

    @property
    def free(self) -> bool:
        """Whether what was lent is not referenced any more."""
        return self._lent() is None

    def holds(self, cache: KeyValueCache | None) -> bool:
        """Whether these keys lie here."""
        return cache is not None and self._lent() is cache.keys

    def lend(self, cache: KeyValueCache) -> KeyValueCache:
        """The same keys and values in this memory, which is lent as long as they are referenced."""
        assert self.cache is not None
        cache = replace(cache)
        cache.materialize()
        rows, end = cache.rows, cache.longest
        keys, values = (memory.zero_()[:rows] for memory in (self.cache.keys, self.cache.values))
        keys[:, :, :, :end] = cache.keys[:, :, :, :end]
        values[:, :, :, :end] = cache.values[:, :, :, :end]
        self._lent = weakref.ref(keys)
        return replace(cache, keys=keys, values=values)

    def fixed(self, parts: Parts) -> Parts:
        """Parts in fixed memory, for a recording."""
        fixed: Parts = {}
        for name, part in parts.items():
            if isinstance(part, KeyValueCache):
                fixed[name] = self._fixed_cache(part.origin is not None)
            elif isinstance(part, SourceMemory):
                fixed[name] = self._source(part).memory
            elif isinstance(part, TokensRead):  # as of a cache: all rows might have read any
                none = part.counts.new_zeros(self.lines)
                fixed[name] = TokensRead(none, self.room - 1, equal_lengths=False)
            else:
                fixed[name] = part.new_zeros(self.lines, *part.shape[1:])
        return fixed

    def _fixed_cache(self, table: bool) -> KeyValueCache:
        # All rows might be of any length: so says a cache whose rows end where its room does.
        assert self.cache is not None
        keys, values = self.cache.keys, self.cache.values
        lengths, longest = torch.zeros_like(self.cache.lengths), self.room - 1
        if not table:
            return KeyValueCache(keys, values, lengths, longest, equal_lengths=False)
        origin = lengths.new_zeros(self.lines, self.room)
        return IndirectKVCache(keys, values, lengths, longest, equal_lengths=False, origin=origin)

    def _source(self, source: SourceMemory) -> Source:
        width = _rounded(source.keys.size(3), ROOM)
        key = source.sharing, width
        if key not in self.sources:
            self.sources[key] = Source(source, self.lines // source.sharing, width)
        return self.sources[key]

    def fill(self, fixed_tokens: Tensor, fixed: Parts, tokens: Tensor, parts: Parts) -> None:
        """Put what a step reads where its recording reads it."""
        rows = tokens.size(0)
        fixed_tokens[:rows] = tokens
        for name, part in parts.items():
            target = fixed[name]
            if isinstance(part, KeyValueCache):
                if rows < self.lines:  # the others write behind everything that is read
                    target.lengths.fill_(part.longest)
                target.lengths[:rows] = part.lengths
                if part.origin is not None:
                    target.origin[:rows] = part.origin
            elif isinstance(part, SourceMemory):
                self._source(part).fill(part)
            elif isinstance(part, TokensRead):
                target.counts[:rows] = part.counts
            else:
                target[:rows] = part


# -------------------------------------------------------------------------------------- replays


class CapturedSteps:
    """The recorded steps of one model.

    A shape is recorded when it comes again and again, after some steps that the model makes itself;
    what was recorded must give the same.
    """

    def __init__(self) -> None:
        self.buffers: list[GraphBuffer] = []
        self.refused: str | None = None  # why nothing is recorded any more
        self._asked: Counter[Any] = Counter()
        self._weights: Any = None
        self._lock = threading.Lock()

    def step(self, model: Any, tokens: Tensor, state: State) -> tuple[Tensor, Any]:
        if self.refused is not None or not _plain(model, tokens):
            return model.step(tokens, state)
        try:
            with self._lock, torch.inference_mode(False), torch.no_grad():
                result = self._replayed(model, tokens, state)
        except Exception as error:  # whatever a library does when it is recorded
            self._refuse(model, error)
            result = None
        return model.step(tokens, state) if result is None else result

    def _replayed(self, model: Any, tokens: Tensor, state: State) -> tuple[Tensor, Any] | None:
        """A step that is recorded, or is so now; None: the model's own must do."""
        parts = parts_of(state)
        cache, source = _only(parts, KeyValueCache), _only(parts, SourceMemory)
        buffer = self._buffer(model, tokens, parts, cache, source)
        if buffer is None:
            return None
        if cache is not None and not buffer.holds(cache):
            moved = buffer.lend(cache)
            parts = {n: moved if part is cache else part for n, part in parts.items()}
            cache = moved
        key = _step_key(cache, source)
        replay = buffer.replays.get(key)
        if replay is None:
            replay = self._record(model, buffer, tokens, with_parts(state, parts), parts)
            buffer.replays[key] = replay
        else:
            buffer.fill(replay.tokens, replay.parts, tokens, parts)
            replay.start()
        state.consume()
        rows = tokens.size(0)
        after: Parts = {name: tensor[:rows].clone() for name, tensor in replay.left.items()}
        for name, part in parts.items():
            if isinstance(part, KeyValueCache | TokensRead):
                after[name] = part.advance(1)
            elif isinstance(part, SourceMemory):
                after[name] = part
        return replay.scores[:rows].clone(), with_parts(state, after)

    # ---- finding a buffer

    def _buffer(
        self,
        model: Any,
        tokens: Tensor,
        parts: Parts,
        cache: KeyValueCache | None,
        source: SourceMemory | None,
    ) -> GraphBuffer | None:
        """Where the state lies or may be put; None where nothing is recorded of its shape yet."""
        sharing = 1 if source is None else source.sharing
        counted = _only(parts, TokensRead) if cache is None else cache
        room = _room(model.config.max_length, counted)
        if room is None or tokens.size(0) % sharing:
            return None
        key = _step_key(cache, source)
        current = next((buffer for buffer in self.buffers if buffer.holds(cache)), None)
        if current is not None and (current.room < room or current.lines % sharing):
            current = None  # it has to move
        if current is not None and key in current.replays:
            return current
        lines = _rounded(tokens.size(0) // sharing) * sharing
        shape = (lines, room) if current is None else (current.lines, current.room)
        request = _kind(parts, tokens), *shape, key
        self._asked[request] += 1
        if self._asked[request] <= OWN:
            return None
        if self._renewed(model) or current is None:
            return self._free_buffer(_kind(parts, tokens), cache, *shape)
        return current

    def _free_buffer(
        self, kind: Any, cache: KeyValueCache | None, lines: int, room: int
    ) -> GraphBuffer:
        for buffer in self.buffers:
            if buffer.free and (buffer.kind, buffer.lines, buffer.room) == (kind, lines, room):
                return buffer
        idle = [buffer for buffer in self.buffers if buffer.free]
        for buffer in idle[: max(0, len(self.buffers) + 1 - BUFFERS)]:
            self.buffers.remove(buffer)
        self.buffers.append(GraphBuffer(kind, cache, lines, room))
        return self.buffers[-1]

    def _renewed(self, model: Any) -> bool:
        """Whether nothing holds that was recorded, since the weights lie elsewhere now.

        Raises:
            CannotReplay: parts of the model have hooks.
        """
        if any(part._forward_hooks or part._forward_pre_hooks for part in model.modules()):
            raise CannotReplay("hooks on its parts")
        tensors = [*model.parameters(), *model.buffers()]
        weights = [(t.data_ptr(), t.dtype) for t in tensors]
        if weights == self._weights:
            return False
        self._weights = weights
        self.buffers.clear()
        return True

    # ---- recording

    def _record(
        self,
        model: Any,
        buffer: GraphBuffer,
        tokens: Tensor,
        state: State,
        parts: Parts,
    ) -> CapturedStep:
        """A recording of this step, which has been made then.

        Raises:
            CannotReplay: it does not give what the model's own step gives.
        """
        rows = tokens.size(0)
        expected, _ = model.step(tokens, with_parts(state, _unused(parts)))
        fixed = buffer.fixed(parts)
        fixed_tokens = tokens.new_zeros(buffer.lines, 1)
        buffer.fill(fixed_tokens, fixed, tokens, parts)

        def run() -> tuple[Tensor, Tensors]:
            scores, after = model.step(fixed_tokens, with_parts(state, _unused(fixed)))
            return scores, _left(fixed, parts_of(after), buffer.room)

        start, scores, tensors = recorded(run, tokens.device)
        replay = CapturedStep(fixed_tokens, fixed, list(model.buffers()), start, scores, tensors)
        replay.start()
        worst = (replay.scores[:rows] - expected).abs().max()
        if not worst <= CLOSE.get(expected.dtype, 5e-2) * expected.abs().max():
            raise CannotReplay("its recorded steps give other scores")
        return replay

    def _refuse(self, model: Any, error: Exception) -> None:
        """From now on the model's own steps do; this is told once."""
        self.refused = str(error).strip().split("\n")[0] or type(error).__name__
        self.buffers.clear()
        warn(
            f"steps of {type(model).__name__} cannot be recorded as CUDA graphs and take longer: "
            f"{self.refused:.200}",
        )


def _plain(model: Any, tokens: Tensor) -> bool:
    """Whether nothing but the scores is wanted of a step."""
    return (
        tokens.dtype == torch.int64
        and tokens.numel() > 0
        and tokens.size(1) == 1  # several are read as ever
        and not model.training
        and not torch.is_grad_enabled()
        and not captured_or_gated()
        and not torch.is_autocast_enabled(tokens.device.type)
    )


def _room(most: int | None, counted: KeyValueCache | TokensRead | None) -> int | None:
    """Positions that a state needs, those of a cache rounded up; None where the model has not so
    many.

    most: the largest number of them; None: any.
    """
    if counted is None:
        return 0
    room = (
        _rounded(counted.longest + 1, ROOM) if isinstance(counted, KeyValueCache) else sys.maxsize
    )
    room = room if most is None else min(room, most)
    return room if max(1, counted.longest) < room else None


def _kind(parts: Parts, tokens: Tensor) -> Any:
    """What states have in common that may use one buffer, one after another."""
    kind: list[Any] = [tokens.device]
    for name, part in parts.items():
        if isinstance(part, TokensRead):
            kind.append((name, type(part)))
            continue
        tensor = part if isinstance(part, Tensor) else part.keys
        shape = tensor.shape[1:] if tensor is part else (*tensor.shape[1:3], tensor.size(4))
        kind.append((name, type(part), tuple(shape), tensor.dtype))
    return tuple(kind)


def _step_key(cache: KeyValueCache | None, source: SourceMemory | None) -> Any:
    """What steps have in common that have one recording."""
    source_key = None if source is None else (_rounded(source.keys.size(3), ROOM), source.sharing)
    return cache is not None and cache.origin is not None, source_key


def _left(fixed: Parts, after: Parts, room: int) -> Tensors:
    """The tensors that a step leaves; caches and sources must lie where they lay.

    Raises:
        CannotReplay: they do not.
    """
    left: Parts = {}
    for name, part in fixed.items():
        now = after.get(name)
        if isinstance(part, Tensor):
            left[name] = now
        elif isinstance(part, SourceMemory):
            if now is not part:
                raise CannotReplay("a memory of sources that changes")
        elif isinstance(part, TokensRead):
            if now is None or now.longest != room:
                raise CannotReplay("a count of tokens that is not advanced once")
        elif now is None or now.keys is not part.keys or now.longest != room:
            raise CannotReplay("a cache that is not advanced once")
    return left
