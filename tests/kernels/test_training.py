"""Kernels of training against their definitions: LSTM, top-k."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch import Tensor

from regard import ops
from regard.attention.attend import attend
from regard.attention.masks import causal, given, padding
from regard.attention.multihead import SelfAttention
from regard.kernels import operations as compiled
from regard.kernels import products
from regard.layers.dropout import AddNorm
from regard.layers.feedforward import FeedForward
from regard.layers.linear import Linear
from regard.layers.recurrent import LSTM
from regard.ops import Drop, KeyMask, WeightCopies, cast, weight_copies

KINDS = ["fast", "older", "plain"]
SOME = (0x0123456789ABCDEF, 9830)  # a decision that drops three in ten
NUMBERS = {torch.float32: dict(atol=2e-6, rtol=2e-5), torch.bfloat16: dict(atol=2e-2, rtol=2e-2)}


def leaf(*shape, kind=torch.float32) -> Tensor:
    return torch.randn(shape).to(kind).requires_grad_()


def in_float64(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().double().requires_grad_() for t in tensors]


def gradients(out: Tensor, *of: Tensor) -> list[Tensor]:
    """Gradients of a weighted sum, so that every column has its own weight."""
    weights = torch.linspace(-1, 2, out.numel(), dtype=torch.float64).view(out.shape)
    return list(torch.autograd.grad((out.double() * weights).sum(), of))


def alike(found, wanted, kind) -> None:
    for one, other in zip(found, wanted, strict=True):
        scale = max(1.0, other.detach().abs().max().item())
        torch.testing.assert_close(one.double() / scale, other.double() / scale, **NUMBERS[kind])


# ---- dropout


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("kernels", KINDS)
def test_kernel_and_torch_drop_the_same_elements(use, kernels, kind):
    shapes = [(), (7,), (3, 768), (2, 5, 7), (100, 1), (4, 70, 130), (1, 20_001)]
    for shape, threshold in itertools.product(shapes, (1, 3277, 32767)):
        use(kernels)
        x, decision = torch.randn(shape).to(kind), Drop(SOME[0], threshold)
        found = ops.dropout(x, decision)
        scaled = (x.float() * decision.scale).to(kind)
        assert torch.equal(found, torch.where(ops.keep_mask(x.shape, decision), scaled, 0))
        use(None)
        assert torch.equal(found, ops.dropout(x.float(), decision).to(kind))


def test_dropout_uses_the_published_numbers_of_its_generator():
    """The first numbers that are published for this generator, from the seed 1234567."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    shape, bits = torch.Size((1, 12)), []
    for number, part in itertools.product(published, range(4)):
        bits.append((number >> 16 * part) & 0x7FFF)
    for threshold in (1000, 9830, 20_000, 32_000):
        kept = ops.keep_mask(shape, Drop(1234567, threshold))[0].tolist()
        assert kept == [number >= threshold for number in bits]


# ---- products under autocast


def test_a_product_under_autocast_has_float32_gradients():
    layer = Linear(24, 40)
    x = leaf(5, 7, 24)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    exact, (y,) = copy.deepcopy(layer).double(), in_float64(x)
    wanted = exact(y)
    alike([out], [wanted], torch.bfloat16)
    found = gradients(out, x, *layer.parameters())
    assert {g.dtype for g in found} == {torch.float32}
    alike(found, gradients(wanted, y, *exact.parameters()), torch.bfloat16)


def test_low_precision_copies_are_kept_until_the_weight_changes():
    weight = torch.nn.Parameter(torch.randn(3, 4))
    assert cast(weight, torch.bfloat16) is not cast(weight, torch.bfloat16)
    with weight_copies(WeightCopies()):
        first = cast(weight, torch.bfloat16)
        assert cast(weight, torch.bfloat16) is first and torch.equal(first, weight.bfloat16())
        with torch.no_grad():
            weight.add_(1.0)
        assert torch.equal(cast(weight, torch.bfloat16), weight.bfloat16())
        sliced = weight[:2]
        assert torch.equal(cast(sliced, torch.bfloat16), sliced.bfloat16())
    weight.data.add_(1.0)
    assert torch.equal(cast(weight, torch.bfloat16), weight.bfloat16())


# ---- the loss of words


@pytest.mark.parametrize("column", [3, 20])
def test_nan_or_infinite_logits_give_a_nan_loss(use, column):
    use("fast")
    scores = torch.zeros(3, 21)
    scores[1, column], scores[2] = torch.nan, -torch.inf
    found = compiled.cross_entropy(scores, torch.tensor([1, 2, 3]), 0.0)
    assert found.isnan().tolist() == scores.isnan().any(1).tolist() == [False, True, True]


# ---- attention

MASKS = {
    "free": lambda b, t, s: KeyMask(),
    "padding": lambda b, t, s: padding(torch.arange(b) * s // b).resolve(t, s, sequences=b),
    "causal": lambda b, t, s: causal().resolve(t, s),
    "both": lambda b, t, s: (causal() & padding(torch.full((b,), s // 2))).resolve(
        t, s, sequences=b
    ),
    "any": lambda b, t, s: given(torch.rand(b, 2, t, s) < 0.4).resolve(t, s, sequences=b, heads=2),
}
SHAPES = [(2, 8, 8, 8), (1, 70, 70, 16), (2, 5, 35, 6), (2, 130, 33, 40), (1, 129, 129, 80)]


@pytest.fixture
def fused(use):
    use("fast")
    one = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16)
    if not compiled.attends(one, one, one):
        pytest.skip("this processor has no products of bfloat16")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_attention_and_its_gradients_equal_those_in_float64(fused, mask, probability):
    for rows, queries, keys, width in SHAPES:
        if queries != keys and mask in ("causal", "both"):
            continue
        query = leaf(rows, 2, queries, width, kind=torch.bfloat16)
        key, value = (leaf(rows, 2, keys, width, kind=torch.bfloat16) for _ in range(2))
        allowed = MASKS[mask](rows, queries, keys)
        torch.manual_seed(2)
        out = attend(query, key, value, mask=allowed, dropout=probability)
        assert type(out.grad_fn).__name__ == "_AttentionBackward"
        exact = in_float64(query, key, value)
        torch.manual_seed(2)
        with ops.reference():
            wanted = attend(*exact, mask=allowed, dropout=probability)
        alike([out], [wanted], torch.bfloat16)
        found = gradients(out, query, key, value)
        alike(found, gradients(wanted, *exact), torch.bfloat16)


# ---- all together


def test_gradients_do_not_depend_on_the_number_of_threads(fused, monkeypatch):
    """Every bit is the same: partial sums belong to rows, not to threads."""
    monkeypatch.setattr(compiled, "NUMBERS_PER_THREAD", 1)
    monkeypatch.setattr(compiled, "PRODUCTS_PER_THREAD", 1)
    norm, feed = AddNorm(48, dropout=0.1), FeedForward(48, 96, activation="gelu", dropout=0.1)
    attention = SelfAttention(48, 4, kind="encoder", dropout=0.1)
    parts = torch.nn.ModuleList([norm, feed, attention])
    hidden = torch.randn(3, 70, 48)

    def passed():
        torch.manual_seed(5)
        with torch.autocast("cpu", torch.bfloat16):
            out = norm(hidden, attention(hidden, KeyMask()))
            out = norm(out, feed(out))
        return gradients(out, *parts.parameters())

    first = passed()
    assert all(gradient.abs().sum() > 0 for gradient in first)
    for threads in (2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert all(torch.equal(a, b) for a, b in zip(first, passed(), strict=True))


def test_unsupported_types_and_empty_tensors_do_not_use_kernels(use):
    use("fast")
    empty, wide = torch.zeros(0, 8), torch.zeros(2, 8, dtype=torch.float64)
    assert (
        not compiled.fit(empty)
        and not compiled.fit(wide)
        and not compiled.fit(torch.zeros(2), wide)
    )
    assert not compiled.fit(torch.zeros(2, device="meta"))
    norm = AddNorm(8, dropout=0.1)
    assert norm(empty, empty).shape == (0, 8)
    heads = torch.zeros(1, 0, 3, 8, dtype=torch.bfloat16)
    assert attend(heads, heads, heads).shape == heads.shape


CELL_SHAPES = [  # rows, steps, width: blocks that are whole and broken, of rows and of units
    (1, 2, 1),
    (2, 3, 16),
    (3, 5, 33),
    (13, 4, 47),
    (25, 3, 64),
    (40, 2, 97),
]
ERROR = 0.015  # of results and gradients, beside the largest: bfloat16 has 8 bits


def naive(x, hidden, cell, below, own, bias):
    """Torch's LSTM: hidden states, the last one and the last cell."""
    weights = [below, own, bias, torch.zeros_like(bias)]
    state = hidden[None], cell[None]
    hiddens, hidden, cell = torch.lstm(x, state, weights, True, 1, 0.0, True, False, True)
    return hiddens, hidden[0], cell[0]


def drawn_cells(rows, steps, width, inner=5):
    """Inputs and parameters in float64; the numbers are those of float32."""
    torch.manual_seed(rows)
    shapes = [(rows, steps, inner), (rows, width), (rows, width)]
    shapes += [(4 * width, inner), (4 * width, width), (4 * width,)]
    scales = [1.0, 0.5, 1.0, 0.5, 2.0 * width**-0.5, 0.5]
    pairs = zip(shapes, scales, strict=True)
    return [(torch.randn(shape) * scale).double().requires_grad_() for shape, scale in pairs]


def layer_of(tensors):
    """Our layer with these parameters, in float32, and its inputs."""
    x, hidden, cell, below, own, bias = (t.detach().float() for t in tensors)
    layer = LSTM(x.size(2), hidden.size(1))
    with torch.no_grad():
        layer.input.weight.copy_(below)
        layer.recurrent.weight.copy_(own)
        layer.input.bias.copy_(bias)
    return layer, [t.requires_grad_() for t in (x, hidden, cell)]


def run(layer, read):
    """Hidden states, the last one and the last cell, with products of bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        hiddens, ends = layer(*read)
    return [hiddens, *ends]


def cell_gradients(found, weights, leaves, **options):
    """Gradients of a weighted sum of all results."""
    total = sum((one * weight).sum() for one, weight in zip(found, weights, strict=True))
    return torch.autograd.grad(total, leaves, **options)


def leaves_of(layer, read):
    return [*read, layer.input.weight, layer.recurrent.weight, layer.input.bias]


def error(found, wanted):
    return ((found.double() - wanted).abs().max() / wanted.abs().max()).item()


@pytest.fixture
def calls(use, monkeypatch):
    """The kernels that ran; a skip where this processor has none."""
    use("fast")
    if not products.lstm_available():
        pytest.skip("these kernels are for processors that multiply bfloat16")
    names, call = [], products._call_lstm

    def noted(name, *rest, **tensors):
        names.append(name)
        call(name, *rest, **tensors)

    monkeypatch.setattr(products, "_call_lstm", noted)
    return names


@pytest.mark.parametrize("shape", CELL_SHAPES)
def test_states_and_gradients_equal_those_of_the_equations(calls, shape):
    tensors = drawn_cells(*shape)
    wanted = naive(*tensors)
    weights = [torch.randn_like(one) for one in wanted]
    layer, read = layer_of(tensors)
    found = run(layer, read)
    grads = cell_gradients(found, [w.float() for w in weights], leaves_of(layer, read))
    assert calls == ["regard_lstm_forward", "regard_lstm_backward"]
    everything = zip(
        [*found, *grads], [*wanted, *cell_gradients(wanted, weights, tensors)], strict=True
    )
    for one, other in everything:
        assert one.dtype == torch.float32
        assert error(one, other) < ERROR


def test_outside_of_autocast_the_kernel_does_not_run(calls):
    layer, read = layer_of(drawn_cells(3, 5, 33))
    layer(*read)[0].sum().backward()
    assert not calls


def test_libraries_for_older_processors_have_no_lstm_kernels(libraries):
    for kind in ("older", "plain"):
        assert not libraries[kind].regard_lstm_available()


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_nan_and_infinity_give_nan_probabilities_in_their_row(use, wrong):
    scores = torch.zeros(3, 5000)
    scores[1, 4000] = wrong
    for kind in KINDS:
        use(kind)
        assert ops.topk(scores, 4)[1].isnan().any(1).tolist() == [False, True, False]
