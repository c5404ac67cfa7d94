"""The compiled LSTM against its equations in float64, one step after the other."""

from __future__ import annotations

import pytest
import torch

from regard.kernels import training
from regard.layers.recurrent import LSTM

SHAPES = [  # rows, steps, width: blocks that are whole and broken, of rows and of units
    (1, 2, 1),
    (2, 3, 16),
    (3, 5, 33),
    (13, 4, 47),
    (25, 3, 64),
    (40, 2, 97),
]
ERROR = 0.015  # of results and gradients, beside the largest: bfloat16 has 8 bits


def naive(x, hidden, cell, below, own, bias):
    """i f g o; c = f * c + i * g, h = o * tanh(c)"""
    hiddens = []
    for step in x.unbind(1):
        i, f, g, o = (step @ below.T + hidden @ own.T + bias).chunk(4, 1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        hiddens.append(hidden)
    return torch.stack(hiddens, 1), hidden, cell


def given(rows, steps, width, inner=5):
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


def gradients(found, weights, leaves, **options):
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
    if not training.lstm_available():
        pytest.skip("these kernels are for processors that multiply bfloat16")
    names, call = [], training._call_lstm

    def noted(name, *rest, **tensors):
        names.append(name)
        call(name, *rest, **tensors)

    monkeypatch.setattr(training, "_call_lstm", noted)
    return names


@pytest.mark.parametrize("shape", SHAPES)
def test_states_and_gradients_equal_those_of_the_equations(calls, shape):
    tensors = given(*shape)
    wanted = naive(*tensors)
    weights = [torch.randn_like(one) for one in wanted]
    layer, read = layer_of(tensors)
    found = run(layer, read)
    grads = gradients(found, [w.float() for w in weights], leaves_of(layer, read))
    assert calls == ["regard_lstm_forward", "regard_lstm_backward"]
    everything = zip([*found, *grads], [*wanted, *gradients(wanted, weights, tensors)], strict=True)
    for one, other in everything:
        assert one.dtype == torch.float32
        assert error(one, other) < ERROR


def test_outside_of_autocast_the_kernel_does_not_run(calls):
    layer, read = layer_of(given(3, 5, 33))
    layer(*read)[0].sum().backward()
    assert not calls


def test_the_states_of_a_sequence_do_not_depend_on_the_batch_or_threads(calls):
    """The sums of a row are added in one order, by any number of threads and in any batch."""
    layer, (x, hidden, cell) = layer_of(given(30, 4, 97))
    inputs = (x @ layer.input.weight.T).detach().bfloat16()
    hidden, cell = hidden.detach(), cell.detach()
    before = torch.get_num_threads()

    def states(rows, threads):
        torch.set_num_threads(threads)
        try:
            return training.lstm_forward(
                *(layer.recurrent.weight, inputs[rows], layer.input.bias),
                *(hidden[rows], cell[rows]),
                keep=False,
            ).hiddens
        finally:
            torch.set_num_threads(before)

    whole = states(slice(None), 1)
    assert torch.equal(states(slice(None), 3), whole)
    for rows in (slice(0, 1), slice(7, 20)):
        assert torch.equal(states(rows, 2), whole[rows])


def test_libraries_for_older_processors_have_no_lstm_kernels(libraries):
    for kind in ("older", "plain"):
        assert not libraries[kind].regard_lstm_available()
