"""Decoders and encoders around a model, whose steps are calls of the compiled kernels.

The model's own code runs, on the same weights, where attention is captured, heads are gated, in
training, and where something has no compiled form.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from regard.attention.cache import KeyValueCache, SourceMemory
from regard.data.batches import ALL, FirstTokens, Sequences, TokenSubset
from regard.kernels import build, tensors
from regard.kernels.lowering import IDS, SEGMENTS, Lowering, tracer
from regard.kernels.products import threads_for
from regard.kernels.program import (
    Kind,
    Op,
    OpList,
    Program,
    agree,
    programs_of,
    readable,
    wants_results_alone,
)
from regard.kernels.signatures import PartStruct
from regard.kernels.tracer import CannotCompile, LeafTracer, state_symbols
from regard.layers.pooling import LayerChoice, SingleLayer
from regard.models import protocols
from regard.models.transformer import TransformerState
from regard.models.wrappers import EncoderWrapper, GeneratorWrapper
from regard.state import State

MAX_TOKENS = 512  # of all sequences in one call, so that the registers stay in the cache


class CompiledGenerator(GeneratorWrapper):
    """A generator around a quantized model.

    Keys and values are float16: as precise as the rest, and half as much to read.
    """

    model: Any  # a `Generator` that is an `nn.Module`

    def __init__(self, model: protocols.Generator):
        super().__init__(model)
        self.programs = programs_of(model)

    # ---- the start

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> Any:
        state = self.model.empty(sequences, dtype)
        if dtype is None and type(state) is KeyValueCache:
            return self.model.empty(sequences, torch.float16)
        return state

    def prefill(self, tokens: Tensor, state: State, lengths: Tensor | None = None) -> Any:
        program = self._cached(tokens, state, "prefill")
        if program is None or not isinstance(state, KeyValueCache):
            return self.model.prefill(tokens, state, lengths)
        _, after = self._in_parts(program, tokens, state)
        return after if lengths is None else after.truncate(lengths)

    def read(self, source: Sequences) -> Any:
        if not isinstance(self.model, protocols.CrossAttentionModel):
            return self.model.read(source)
        memory = CompiledTexts(self.model, "encode").states(source)
        if memory is None:
            memory = self.model.encode(source)
        return self.model.initial_state(memory, source.lengths, torch.float16)

    def __call__(self, ids: Tensor, state: State | None = None) -> protocols.Output:
        if not isinstance(self.model, protocols.LanguageModel):  # a source and a target
            return self.model.forward(ids, state)
        if state is not None:
            program = self._cached(ids, state, "forward")
            if program is None or not isinstance(state, KeyValueCache):
                return self.model.forward(ids, state)
            return protocols.Output(*self._in_parts(program, ids, state))
        hidden = self.whole_texts(ids)
        return self.model.forward(ids) if hidden is None else protocols.Output(hidden)

    def whole_texts(self, ids: Tensor) -> Tensor | None:
        """(B, T) -> (B, T, D), at most `MAX_TOKENS` in one call; None where there is no program."""
        if not ids.numel():
            return None
        parts = []
        for part in ids.split(max(1, MAX_TOKENS // ids.size(1))):
            state = self.empty(part.size(0))
            if type(state) is not KeyValueCache:
                return None
            state = state.reserve(part.size(1))
            program = self._cached(part, state, "forward")
            if program is None:
                return None
            parts.append(self._in_parts(program, part.contiguous(), state)[0])
        return torch.cat(parts)

    def _in_parts(
        self, program: Program, tokens: Tensor, cache: KeyValueCache
    ) -> tuple[Tensor, KeyValueCache]:
        """Hidden states (R, T, D), by slices of the tokens, and the next state."""
        parts = []
        cache.consume()
        cache = cache.reserve(tokens.size(1))
        for part in tokens.split(max(1, MAX_TOKENS // max(1, tokens.size(0))), dim=1):
            parts.append(program.step(part.contiguous(), cache, None))
            cache = cache.advance(part.size(1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1), cache

    # ---- steps

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, Any]:
        """See `Generator`; more than `MAX_TOKENS` are read in several calls."""
        rows, count = tokens.shape
        if rows * count > MAX_TOKENS and count > 1:
            parts = []
            for part in tokens.split(max(1, MAX_TOKENS // rows), dim=1):
                scores, state = self.step(part.contiguous(), state)
                parts.append(scores)
            return torch.cat(parts, 1), state
        stepped = self._stepped(tokens, state)
        return self.model.step(tokens, state) if stepped is None else stepped

    def search(
        self, tokens: Tensor, state: State, plan: protocols.SearchPlan
    ) -> protocols.SearchResults | None:
        cache, source = _memories(state)
        fits = 0 < tokens.numel() * plan.size <= MAX_TOKENS
        if not fits or source is None or source.sharing > 1 or cache.longest:
            return None
        program = self._program(tokens, state) if self._takes(tokens, cache, source) else None
        if program is None:
            return None
        return program.search(tokens, cache, source, plan)

    def _stepped(self, tokens: Tensor, state: State) -> tuple[Tensor, Any] | None:
        cache, source = _memories(state)
        if cache is None:
            return self._recurrent_step(tokens, state)
        count = tokens.size(1)
        program = self._program(tokens, state) if self._takes(tokens, cache, source) else None
        if program is None or program.end < cache.longest + count:
            return None
        state.check_unused()
        cache = cache.reserve(count)
        result = program.step(tokens, cache, source)
        state.consume()
        after = cache.advance(count)
        return result, after if source is None else replace(
            cast(TransformerState, state), cache=after
        )

    def _recurrent_step(self, tokens: Tensor, state: State) -> tuple[Tensor, Any] | None:
        source = _source(state)
        if not all(part.dim() in (2, 3) and part.is_floating_point() for part in _tensors(state)):
            self._without_program(state)
            return None
        plain = self._takes(tokens, None, source) and tokens.size(1) == 1
        plain = plain and all(_is_plain(part, tokens.size(0)) for part in _tensors(state))
        program = self._program(tokens, state) if plain else None
        if program is None:
            return None
        state.check_unused()
        parts, after = _next(state)
        result = program.step(tokens, None, source, parts)
        state.consume()
        return result, after

    # ---- programs

    def _takes(
        self, tokens: Tensor, cache: KeyValueCache | None, source: SourceMemory | None
    ) -> bool:
        return (
            tokens.numel() > 0
            and tokens.dtype == torch.int64
            and tokens.device.type == "cpu"
            and tokens.is_contiguous()
            and wants_results_alone(self.model)
            and (cache is None or tokens.size(0) == cache.rows and readable(cache))
            and (source is None or readable(source))
        )

    def _program(self, tokens: Tensor, state: State) -> Program | None:
        """Of a step from a state of this kind."""
        kind = KeyValueCache if isinstance(state, KeyValueCache) else type(state)
        key = kind, *(part.shape[1:] for part in _tensors(state))
        return self.programs.of(
            self.model,
            key,
            lambda: Program(_step_ops(self.model, "step", state)),
            lambda program: self._agrees(tokens, state),
        )

    def _without_program(self, state: State) -> None:
        """Say once that states of this kind are none that the kernels read."""

        def refuse() -> Program:
            raise CannotCompile(f"A state of type {type(state).__name__} has no compiled form.")

        self.programs.of(self.model, type(state), refuse, lambda program: True)

    def _agrees(self, tokens: Tensor, state: State) -> bool:
        """Whether a step that is compiled now gives what the model's own gives."""
        expected, _ = self.model.step(tokens, state.copy())
        stepped = self._stepped(tokens, state.copy())
        return stepped is None or agree(stepped[0], expected)

    def _cached(self, tokens: Tensor, state: State, method: str) -> Program | None:
        """Of what reads tokens behind a cache and gives no scores."""
        if type(state) is not KeyValueCache:
            return None
        plain = tokens.numel() > 0 and self._takes(tokens[:1, :1].contiguous(), None, None)
        if not plain or tokens.dtype != torch.int64 or not readable(state):
            return None

        def make() -> Program:
            ops = _step_ops(self.model, "forward", state)
            return Program(ops.cache_only() if method == "prefill" else ops)

        program = self.programs.of(
            self.model,
            (method, type(state)),
            make,
            lambda program: self._cache_agrees(program, tokens, gives=method == "forward"),
        )
        fits = program is not None and state.longest + tokens.size(1) <= program.end
        return program if fits else None

    def _cache_agrees(self, program: Program, tokens: Tensor, *, gives: bool) -> bool:
        """Whether a program leaves the keys, and gives the states, of the model's own code."""
        first, begun = tokens[:, :4].contiguous(), self.empty(tokens.size(0))
        expected = self.model.forward(first, begun.copy())
        hidden, after = self._in_parts(program, first, begun)
        end = slice(after.longest)
        keys = agree(after.keys[..., end, :].float(), expected.state.keys[..., end, :].float())
        return keys and (not gives or agree(hidden, expected.hidden))


def _step_ops(model: nn.Module, method: str, state: State) -> OpList:
    """What a method does with tokens and a state like this.

    Raises:
        CannotCompile: something has no operation, or the next state is of another kind.
    """

    def arguments(tracing: LeafTracer) -> list[Any]:
        return [tracing.symbol("tokens"), state_symbols(tracing, state)]

    graph = tracer(method, arguments).graph_of(model)
    return Lowering(model).step(graph, state)


def _memories(state: State) -> tuple[Any, Any]:
    """The cache and the source of a state; nothing where it is of another kind."""
    if isinstance(state, KeyValueCache):
        return state, None
    parts = state.parts()
    cache, source = parts.get("cache"), parts.get("source")
    if parts.keys() == {"cache", "source"} and type(cache) is KeyValueCache:
        if type(source) is SourceMemory:
            return cache, source
    return None, None


# --------------------------------------------------------------------------- recurrent states


def _source(state: State) -> SourceMemory | None:
    """The source that a state has."""
    return next((part for part in state.parts().values() if type(part) is SourceMemory), None)


def _tensors(state: State) -> Iterator[Tensor]:
    """The parts of a recurrent state in their order, without its source and without empty ones."""
    if isinstance(state, KeyValueCache):
        return
    for value in state.parts().values():
        if isinstance(value, Tensor):
            if value.size(-1):
                yield value
        elif isinstance(value, State) and type(value) is not SourceMemory:
            yield from _tensors(value)


def _is_plain(part: Tensor, rows: int) -> bool:
    fits = part.dim() in (2, 3) and part.size(0) == rows and part.stride(-1) == 1
    return fits and tensors.is_cpu_strided(part) and not part.requires_grad


def _changed(state: State, change: Callable[[Tensor], Tensor]) -> State:
    """A state with other parts: those that `_tensors` gives, in the same order."""
    parts: dict[str, Any] = {}
    for name, value in state.parts().items():
        if isinstance(value, Tensor):
            parts[name] = change(value) if value.size(-1) else value
        elif isinstance(value, State) and type(value) is not SourceMemory:
            parts[name] = _changed(value, change)
    return replace(state, **parts)


def _next(state: State) -> tuple[Any, State]:
    """Where the parts of a state are, and those of a new one, which is not filled yet."""
    parts = []

    def beside(tensor: Tensor) -> Tensor:
        new = torch.empty(tensor.shape)
        before, after = (
            tensors.row_strided_address(name, x, torch.float32, tensor.shape)
            for name, x in (("state", tensor), ("new", new))
        )
        size = tensor.element_size()
        layers = tensor.size(1) if tensor.dim() == 3 else 1
        for layer in range(layers):
            at = layer * tensor.stride(1) * size, layer * new.stride(1) * size
            parts.append(PartStruct(before + at[0], tensor.stride(0), after + at[1], new.stride(0)))
        return new

    after = _changed(state, beside)
    return (PartStruct * len(parts))(*parts), after


LAST = SingleLayer(-1)


def compiled_encoder(model: protocols.Encoder) -> protocols.Encoder:
    """An encoder around a quantized model."""
    causal = isinstance(model, protocols.LanguageModel)
    return CausalEncoder(model) if causal else CompiledEncoder(model)


class CausalEncoder(EncoderWrapper):
    """Around a language model, in which each token sees those before it."""

    @property
    def unpadded(self) -> bool:  # type: ignore[override]
        """No: the kernels take the padding out of a padded batch."""
        return False

    def encode(self, batch: Sequences, tokens: TokenSubset = ALL) -> Tensor:
        hidden = None
        if batch.layout is None and batch.segments is None:
            hidden = CompiledGenerator(cast(protocols.LanguageModel, self.model)).whole_texts(
                batch.ids
            )
        return self.model.encode(batch, tokens) if hidden is None else tokens.of(hidden)


class CompiledEncoder(EncoderWrapper):
    """Around a model in which each token sees its whole text; what stands at padding is zero."""

    def __init__(self, model: protocols.Encoder):
        super().__init__(model)
        self.texts = CompiledTexts(model, "states")

    @property
    def unpadded(self) -> bool:  # type: ignore[override]
        """No: the kernels take the padding out of a padded batch."""
        return False

    @property
    def tokens_per_pass(self) -> int:  # type: ignore[override]
        """More than of the model: the kernels themselves keep together what stays in caches."""
        return 4096

    def encode(self, batch: Sequences, tokens: TokenSubset = ALL) -> Tensor:
        hidden = None
        if tokens is ALL:
            hidden = self.texts.states(batch)
        elif isinstance(tokens, FirstTokens):
            hidden = self.texts.states(batch, "first")
        return self.model.encode(batch, tokens) if hidden is None else hidden

    def chosen(self, batch: Sequences, choice: LayerChoice) -> Tensor:
        hidden = self.texts.states(batch) if choice == LAST else None
        return self.model.chosen(batch, choice) if hidden is None else hidden[batch.keep]


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

    def encode(self, flat: Flat) -> Tensor:
        """States (N, D) of texts."""
        count = (flat.count,)
        out = torch.empty(flat.count, self.width)
        if flat.count:
            build.library().regard_encode(
                *(self._address, tensors.raw_address(out), flat.count),
                tensors.optional_address("ids", flat.ids, torch.int64, count),
                tensors.optional_address("segments", flat.segments, torch.int64, count),
                tensors.address("starts", flat.starts, torch.int64, flat.starts.shape),
                *(flat.starts.numel() - 1, threads_for(flat.count * self._work)),
            )
        return out


def _looks_up(op: Op, kind: int) -> bool:
    return op.kind in (Kind.EMBEDDING, Kind.TABLE) and op.heads == kind


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

    def __init__(self, model: protocols.Encoder | protocols.CrossAttentionModel, method: str):
        self.model, self.method, self.programs = model, method, programs_of(model)

    def states(self, batch: Sequences, part: str = "last") -> Tensor | None:
        """Hidden states of the last layer, (B, T, D), or of the "first" tokens alone, (B, 1, D);
        None where there is no program.
        """
        flat = self._flat(batch)
        program = None if flat is None else self._program(batch, flat, part)
        if flat is None or program is None:
            return None
        hidden = program.encode(flat)
        return flat.padded(hidden) if part == "last" else hidden[flat.starts[:-1], None]

    def _flat(self, batch: Sequences) -> Flat | None:
        plain = (
            batch.layout is None
            and tensors.is_cpu_strided(batch.ids, torch.int64)
            and tensors.is_cpu_strided(batch.lengths, torch.int64)
            and (batch.segments is None or tensors.is_cpu_strided(batch.segments, torch.int64))
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
        if not length:
            return True
        segments = None if batch.segments is None else batch.segments[:1, :length]
        first = Sequences(batch.ids[:1, :length], batch.lengths[:1], segments)
        expected = self.model.encode(first)[0]
        flat = Flat(first)
        if not program.takes(flat):
            return True
        hidden = program.encode(flat)
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
        states: Any = graph.output_node().args[0]
        result = states if isinstance(states, fx.Node) else states[-1]
        lowering = Lowering(module)
        return lowering.finished(lowering.lowered(graph, result))
