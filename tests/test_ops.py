"""Every implementation of an operation against its definition, forward and backward.

Drawn: shapes, types, strides, masks, biases, sequences without padding, empty inputs. A new
implementation is compared as soon as it registers, and fails here when nothing draws a call that it
applies to.
"""

from __future__ import annotations

import inspect
import itertools
import math
import platform
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import ops
from regard.attention.block_sparse import block_window, by_blocks, global_blocks
from regard.attention.masks import padding
from regard.errors import ConfigError
from regard.layers.quantized import Panels, pack, quantize_matrix
from regard.ops import (
    Drop,
    KeyMask,
    RecurrentWeights,
    SequenceOffsets,
    UnpaddedMask,
)
from regard.registry import implementation_names

Draw = Random
TYPES = [torch.float32, torch.bfloat16, torch.float64]
DRAWS = 60


def numbers(draw: Draw, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers, in memory as it happens: contiguous, transposed, or every second one."""
    layout = draw.choice(["plain", "transposed", "strided"])
    if layout == "transposed" and len(shape) > 1:
        turned = torch.randn(*shape[:-2], shape[-1], shape[-2]).to(dtype)
        return turned.transpose(-1, -2)
    if layout == "strided" and shape:
        return torch.randn(*shape[:-1], 2 * shape[-1]).to(dtype)[..., ::2]
    return torch.randn(shape).to(dtype)


def size(draw: Draw, most: int = 40) -> int:
    return draw.choice([0, 1, 2, 3, *(draw.randint(1, most) for _ in range(12))])


def dtype_of(draw: Draw) -> torch.dtype:
    return draw.choice([*TYPES[:2], *TYPES])


def drop_of(draw: Draw) -> Drop:
    return draw.choice([ops.NO_DROP, Drop(draw.getrandbits(62), draw.randint(1, 32_000))])


# --------------------------------------------------- operation -> arguments, and what is compared


def a_linear(draw: Draw) -> tuple:
    lead = draw.choice([(), (size(draw),), (2, size(draw))])
    inner, outer, dtype = size(draw), size(draw), dtype_of(draw)
    bias = draw.choice([None, numbers(draw, outer, dtype=dtype)])
    weight = numbers(draw, outer, inner, dtype=dtype)
    return numbers(draw, *lead, inner, dtype=dtype), weight, bias


def a_gelu(draw: Draw) -> tuple:
    x = 3 * numbers(draw, size(draw), size(draw), dtype=dtype_of(draw))
    return x, draw.choice(["none", "tanh"])


def a_dropout(draw: Draw) -> tuple:
    shape = draw.choice([(), (size(draw),), (3, size(draw))])
    return numbers(draw, *shape, dtype=dtype_of(draw)), drop_of(draw)


def a_norm(draw: Draw) -> tuple:
    shape = (*draw.choice([(size(draw),), (2, size(draw))]), draw.randint(2, 40))
    dtype = dtype_of(draw)
    wide = dtype if dtype == torch.float64 else torch.float32
    inputs = [numbers(draw, *shape, dtype=dtype) for _ in range(2)]
    parameters = [numbers(draw, shape[-1], dtype=wide) for _ in range(2)]
    return *inputs, *parameters, 1e-5, drop_of(draw)


def offsets(lengths: Sequence[int]) -> SequenceOffsets:
    starts = list(itertools.accumulate(lengths, initial=0))
    return SequenceOffsets(torch.tensor(starts), max(lengths, default=0))


def a_mask(draw: Draw, rows: int, heads: int, queries: int, keys: int) -> KeyMask:
    kind = draw.choice(["all", "causal", "padding", "grid", "sparse", "sparse"])
    if kind == "sparse" and queries == keys:
        lengths = torch.tensor([draw.randint(0, keys) for _ in range(rows)])
        near = block_window(4, 1) | global_blocks(4, lengths)
        return by_blocks(padding(lengths) & near, keys, draw.choice([2, 4]), sequences=rows)
    if kind == "causal" and queries == keys:
        position = torch.arange(keys)
        return KeyMask(position <= position[:, None], is_causal=True)
    if kind == "padding":
        lengths = torch.tensor([draw.randint(0, keys) for _ in range(rows)])
        return KeyMask((torch.arange(keys) < lengths[:, None])[:, None, None])
    if kind == "grid":
        shape = draw.choice([(queries, keys), (rows, 1, queries, keys), (rows, heads, 1, keys)])
        return KeyMask(torch.rand(shape) < 0.6)
    return ops.ALL_KEYS


def some_heads(draw: Draw, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """(B, H, T, K), mostly as layers make them: heads side by side at each position."""
    rows, heads, count, width = shape
    if draw.random() < 0.1:
        return numbers(draw, *shape, dtype=dtype)
    return torch.randn(rows, count, heads, width).to(dtype).transpose(1, 2)


def test_a_window_of_unpadded_sequences_that_are_not_causal_is_an_error():
    both = offsets([3, 2])
    assert UnpaddedMask(both, both, causal=True, window=2).window == 2
    with pytest.raises(ValueError, match="must be causal"):
        UnpaddedMask(both, both, window=2)


def heads_of(draw: Draw) -> tuple[list[Tensor], KeyMask]:
    """Queries, keys and values (B, H, T, K), and a mask; or sequences without padding."""
    dtype, heads = dtype_of(draw), draw.randint(1, 3)
    width = draw.choice([1, 2, 8, 16, 20, 64])
    if draw.random() < 0.3:
        lengths = [draw.randint(0, 30) for _ in range(draw.randint(1, 4))]
        causal = draw.random() < 0.5
        others = lengths if causal else [draw.randint(0, 30) for _ in lengths]
        counts = sum(lengths), sum(others), sum(others)
        mask = KeyMask(unpadded=UnpaddedMask(offsets(lengths), offsets(others), causal))
        return [some_heads(draw, (1, heads, count, width), dtype) for count in counts], mask
    rows, queries = draw.randint(1, 3), size(draw, 70)
    keys = draw.choice([queries, queries, size(draw, 70)])
    shapes = [(rows, heads, count, width) for count in (queries, keys, keys)]
    mask = a_mask(draw, rows, heads, queries, keys)
    return [some_heads(draw, shape, dtype) for shape in shapes], mask


def an_attention(draw: Draw) -> tuple:
    (query, key, value), mask = heads_of(draw)
    bias = None
    if mask.unpadded is None and draw.random() < 0.3:
        bias = numbers(draw, query.size(1), query.size(2), key.size(2), dtype=query.dtype)
    return query, key, value, mask, bias, draw.choice([None, 0.3]), drop_of(draw)


def a_relative_attention(draw: Draw) -> tuple:
    rows, heads, width = draw.randint(1, 2), draw.randint(1, 3), 8
    count = draw.choice([1, size(draw, 20), draw.randint(64, 90), draw.randint(64, 90)])
    total = count + draw.choice([0, size(draw), 1000, 1200])
    dtype = draw.choice([torch.float32, dtype_of(draw)])
    query, distance_query = (numbers(draw, rows, heads, count, width, dtype=dtype) for _ in "ab")
    key, value = (numbers(draw, rows, heads, total, width, dtype=dtype) for _ in "ab")
    distance_key = numbers(draw, draw.choice([1, rows]), heads, total, width, dtype=dtype)
    distance = torch.arange(total - count, total)[:, None] - torch.arange(total)
    seen = (distance >= 0) & (distance < draw.choice([total, 1 + size(draw)]))
    if draw.random() < 0.5:  # keys before the first of a sequence
        first = torch.randint(0, total + 1, (rows, 1, 1, 1))
        seen = seen & (torch.arange(total) >= first)
    mask = KeyMask(seen[(None,) * (4 - seen.dim())])
    return query, distance_query, key, value, distance_key, mask, draw.choice([None, 0.3])


def targets_of(draw: Draw, count: int, vocab_size: int) -> Tensor:
    return torch.tensor([draw.randrange(vocab_size) for _ in range(count)], dtype=torch.int64)


def a_cross_entropy(draw: Draw) -> tuple:
    count, width, vocab_size, dtype = size(draw), draw.randint(1, 20), draw.randint(1, 60), TYPES[0]
    bias = draw.choice([None, numbers(draw, vocab_size)])
    hidden, weight = numbers(draw, count, width), numbers(draw, vocab_size, width, dtype=dtype)
    return hidden, weight, bias, targets_of(draw, count, vocab_size), draw.choice([0.0, 0.1])


def a_loss_gradient(draw: Draw) -> tuple:
    count, vocab_size = size(draw), draw.choice([1, 2, 30, 700])
    logits = torch.randn(count, vocab_size).to(dtype_of(draw))
    return logits, targets_of(draw, count, vocab_size), draw.choice([0.0, 0.1])


def some_logits(draw: Draw) -> Tensor:
    """No two of a row are nearly equal, so that their order is no matter of rounding."""
    count, vocab_size = size(draw), draw.choice([1, 2, 30, 700])
    order = torch.stack([torch.randperm(vocab_size) for _ in range(max(count, 1))])[:count]
    return (order * (8 / vocab_size) - 3).to(draw.choice([torch.float32, torch.float64]))


def a_likelihood(draw: Draw) -> tuple:
    logits = some_logits(draw)
    return logits, targets_of(draw, *logits.shape)


def a_topk(draw: Draw) -> tuple:
    logits = some_logits(draw)
    return logits, draw.randint(1, logits.size(1))


def an_lstm_step(draw: Draw) -> tuple:
    rows, width, dtype = size(draw), draw.randint(1, 40), draw.choice([TYPES[0], TYPES[2]])
    gates = [numbers(draw, rows, 4 * width, dtype=dtype) for _ in range(2)]
    return *gates, numbers(draw, rows, width, dtype=dtype)


def a_recurrence(gates: int, has_cell: bool) -> Callable[[Draw], tuple]:
    def drawn(draw: Draw) -> tuple:
        rows, steps, width, inner = (draw.randint(1, n) for n in (4, 6, 20, 20))
        biases = [draw.choice([None, numbers(draw, gates * width)]) for _ in range(2)]
        weights = RecurrentWeights(
            0.3 * torch.randn(gates * width, inner),
            0.3 * torch.randn(gates * width, width),
            *biases,
        )
        states = [numbers(draw, rows, width) for _ in range(1 + has_cell)]
        return numbers(draw, rows, steps, inner), *states, weights

    return drawn


def a_matrix(draw: Draw, rows: int, columns: int) -> Panels:
    wide = torch.randn(rows, columns) / math.sqrt(max(1, columns))
    quantized, scale = quantize_matrix(wide, draw.choice(["int8", "bfloat16"]))
    return Panels(pack(quantized), scale, (rows, columns))


def a_quantized_linear(draw: Draw) -> tuple:
    rows, columns = draw.randint(1, 60), draw.randint(1, 200)
    x = numbers(draw, *draw.choice([(), (size(draw),), (2, 3)]), columns)
    return x, a_matrix(draw, rows, columns), draw.choice([None, torch.randn(rows)])


def quantized_rows(draw: Draw) -> tuple:
    rows = draw.randint(1, 60)
    return targets_of(draw, size(draw), rows), a_matrix(draw, rows, draw.randint(1, 200))


def a_quantized_recurrence(draw: Draw) -> tuple:
    gates, width, rows = draw.choice([1, 3, 4]), draw.randint(1, 40), draw.randint(1, 4)
    matrix = a_matrix(draw, gates * width, width)
    bias = draw.choice([None, torch.randn(gates * width)])
    cell = torch.randn(rows, width if gates == 4 else 0)
    below = numbers(draw, rows, size(draw, 6), gates * width)
    return below, matrix, bias, numbers(draw, rows, width), cell


CALLS: dict[str, Callable[[Draw], tuple]] = {
    "linear": a_linear,
    "linear_no_grad": a_linear,
    "gelu": a_gelu,
    "dropout": a_dropout,
    "add_norm": a_norm,
    "attention": an_attention,
    "relative_attention": a_relative_attention,
    "cross_entropy": a_cross_entropy,
    "cross_entropy_gradient": a_loss_gradient,
    "negative_log_likelihood": a_likelihood,
    "topk": a_topk,
    "lstm_step": an_lstm_step,
    "rnn": a_recurrence(1, has_cell=False),
    "gru": a_recurrence(3, has_cell=False),
    "lstm": a_recurrence(4, has_cell=True),
    "quantized_linear": a_quantized_linear,
    "quantized_rows": quantized_rows,
    "quantized_recurrence": a_quantized_recurrence,
    "large_empty": lambda draw: ((size(draw), size(draw)), dtype_of(draw)),
}
# These have no gradient: they compute one, rank, or change their arguments.
GRADIENTS = {
    *("linear", "gelu", "dropout", "add_norm", "attention", "cross_entropy"),
    *("lstm_step", "rnn", "gru", "lstm"),
}
AUTOCAST = {"linear", "lstm", "add_norm"}  # some of their implementations are for autocast alone
implementation_names()  # imports all that registers some

# Whole models in compiled calls are compared in tests/kernels.
SMALL = [op for op in ops.OPERATIONS.values() if op.name not in ("generator", "encoder")]
PAIRS = [(op, one.name) for op in SMALL for one in op.implementations]
# The GPU's own generator draws; and inside what torch compiles its own operators do.
ELSEWHERE = {"dropout.torch"}


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for one in value for t in tensors_in(one)] if isinstance(value, list | tuple) else []


def copied(value: Any, learning: bool) -> Any:
    """The same arguments in memory of their own, with the same strides."""
    if isinstance(value, Tensor):
        room = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        room.copy_(value)
        return room.requires_grad_(learning and value.is_floating_point())
    if isinstance(value, KeyMask | Drop):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(copied(one, learning) for one in value))
    if isinstance(value, list | tuple):
        return type(value)(copied(one, learning) for one in value)
    return value


def computed(call: Callable, arguments: tuple, learning: bool, autocast: bool) -> list[Tensor]:
    """Results, then the gradients of a weighted sum of them; of what is changed, the new values."""
    given = copied(arguments, learning)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), torch.set_grad_enabled(learning):
        out = tensors_in(call(*given))
    if not out:
        return tensors_in(given)
    found = [t.detach() for t in out]
    if learning:
        weighted = sum(
            (t.double() * torch.linspace(-1, 2, t.numel()).view(t.shape)).sum() for t in out
        )
        leaves = [t for t in tensors_in(given) if t.requires_grad]
        assert isinstance(weighted, Tensor)
        grads = torch.autograd.grad(weighted, leaves, allow_unused=True)
        found += [
            torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)
        ]
    return found


def assert_near(found: list[Tensor], wanted: list[Tensor], low_precision: bool) -> None:
    for one, other in zip(found, wanted, strict=True):
        if not one.numel():
            continue
        scale = max(1.0, float(other.abs().max()))
        limit = 4e-2 if low_precision else 2e-5
        torch.testing.assert_close(
            one.double() / scale, other.double() / scale, atol=limit, rtol=limit, equal_nan=True
        )


# Results in the type of autocast, or of the logits, whose memory they take.
OTHER_TYPES = {"add_norm.compiled", "lstm.torch", "cross_entropy_gradient.compiled"}


@pytest.mark.parametrize("op, name", PAIRS, ids=[name for _, name in PAIRS])
def test_implementations_equal_the_definition_forward_and_backward(op, name):
    if name in ELSEWHERE:
        pytest.skip("on a GPU")
    compared = 0
    (chosen,) = (one for one in op.implementations if one.name == name)
    for seed in range(DRAWS):
        draw = Random(f"{name} {seed}")
        torch.manual_seed(seed)
        arguments = CALLS[op.name](draw)
        learning = op.name in GRADIENTS and draw.random() < 0.8
        autocast = op.name in AUTOCAST and draw.random() < 0.5
        given = copied(arguments, learning)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            with torch.set_grad_enabled(learning):
                if chosen.when is not None and not chosen.when(*given):
                    continue
        compared += 1
        found = computed(chosen.run, arguments, learning, autocast)
        with ops.reference():
            wanted = computed(op, arguments, learning, autocast)
        low = autocast or any(t.dtype == torch.bfloat16 for t in tensors_in(arguments))
        for one, other in zip(found, wanted, strict=True):
            assert one.shape == other.shape
            assert one.dtype == other.dtype or name in OTHER_TYPES
        if op.name != "large_empty":
            assert_near(found, wanted, low)
    assert compared >= 5, f"only {compared} of {DRAWS} drawn calls are for {name}"


def test_implementations_have_the_parameters_of_the_definition():
    """By the same names, so that keywords reach all of them."""
    for op in ops.OPERATIONS.values():
        wanted = list(inspect.signature(op.definition).parameters)
        for one in op.implementations:
            for function in filter(None, (one.run, one.when)):
                assert list(inspect.signature(function).parameters) == wanted, one.name


def test_every_implementation_is_tested():
    assert {op.name for op, _ in PAIRS} <= CALLS.keys()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="oneDNN is for x86")
def test_implementations_are_turned_off_one_by_one_and_all_together():
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)

    def made_by() -> str:
        return type(ops.linear(x, weight).grad_fn).__name__

    assert made_by() == "_LinearBackward"
    with ops.without("linear.onednn"):
        assert made_by() != "_LinearBackward"
        with ops.without("dropout.torch"):
            assert made_by() != "_LinearBackward"
    with ops.reference():
        assert made_by() != "_LinearBackward"
        with ops.without("dropout.torch"):
            assert made_by() != "_LinearBackward"
    assert made_by() == "_LinearBackward"
    with (
        pytest.raises(ConfigError, match="no implementation 'linear.fast'"),
        ops.without("linear.fast"),
    ):
        pass


def test_an_unknown_name_in_the_environment_raises_an_error(monkeypatch):
    from regard import registry

    def named(*names: str) -> None:
        monkeypatch.setattr(registry, "_from_environment", frozenset(names))

    named("linear.onednn", "attention.torch")
    loaded = ops.load_kernels()
    named("linear.fast")
    with pytest.raises(ConfigError, match="REGARD_WITHOUT: .* 'linear.fast'.*linear.onednn"):
        ops.load_kernels()
    named("linear.compiled")  # no kernels have it
    if loaded:
        with pytest.raises(ConfigError, match="'linear.compiled'.*attention.compiled"):
            ops.load_kernels()
    monkeypatch.setattr(registry, "KERNELS", "regard.no_such_package")
    named("attention.compiled", "linear.compiled")
    assert not ops.load_kernels()
    named("attend.compiled")
    with pytest.raises(ConfigError, match="REGARD_WITHOUT: .* 'attend.compiled'"):
        ops.load_kernels()


def test_kernels_that_are_absent_leave_the_definitions(monkeypatch):
    from regard import registry

    monkeypatch.setattr(registry, "KERNELS", "regard.no_such_package")
    assert registry.kernel_package() is None
    assert not ops.load_kernels()
