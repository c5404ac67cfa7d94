"""Recurrent layers against torch's own, whose weights lie the same way."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch_twins import copy_layer, torch_lstm

from regard import ops
from regard.layers.recurrent import CELLS, LSTM, BidirectionalStack, Stack
from regard.state import Cells

THEIRS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
KINDS = sorted(CELLS)


def twins(kind, d_in=5, d_model=6, layers=2):
    torch.manual_seed(0)
    ours = Stack(CELLS[kind], d_in, d_model, layers).double()
    theirs = THEIRS[kind](d_in, d_model, layers, batch_first=True).double()
    for n, layer in enumerate(ours.layers):
        copy_layer(layer, theirs, f"l{n}")
    return ours, theirs


def random_state(stack, rows, kind):
    cells = stack.empty(rows, torch.zeros(1, dtype=torch.float64))
    return Cells(torch.randn_like(cells.hidden), torch.randn_like(cells.cell))


def as_torch(state, kind):
    hidden = state.hidden.transpose(0, 1).contiguous()  # (B, L, D) -> (L, B, D)
    return (hidden, state.cell.transpose(0, 1).contiguous()) if kind == "lstm" else hidden


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_and_its_gradients_equal_torch(kind):
    ours, theirs = twins(kind)
    x = torch.randn(3, 7, 5, dtype=torch.float64, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    state = random_state(ours, 3, kind)
    found, after = ours(x, state)
    expected, end = theirs(y, as_torch(state, kind))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(as_torch(after, kind), end)

    weigh = torch.randn_like(found)
    ((found * weigh).sum() + after.hidden.sum() + (after.cell**2).sum()).backward()
    end = end if kind == "lstm" else (end, torch.zeros(0, dtype=torch.float64))
    ((expected * weigh).sum() + end[0].sum() + (end[1] ** 2).sum()).backward()
    torch.testing.assert_close(x.grad, y.grad)
    for n, layer in enumerate(ours.layers):
        torch.testing.assert_close(layer.input.weight.grad, getattr(theirs, f"weight_ih_l{n}").grad)
        torch.testing.assert_close(layer.input.bias.grad, getattr(theirs, f"bias_ih_l{n}").grad)
        recurrent = getattr(theirs, f"weight_hh_l{n}").grad
        torch.testing.assert_close(layer.recurrent.weight.grad, recurrent)
        if layer.recurrent.bias is not None:
            bias = getattr(theirs, f"bias_hh_l{n}").grad
            torch.testing.assert_close(layer.recurrent.bias.grad, bias)


@pytest.mark.parametrize("kind", KINDS)
def test_single_steps_equal_the_whole_sequence(kind):
    """A single step takes a path of its own, forward and backward."""
    ours, _ = twins(kind)
    x = torch.randn(3, 5, 5, dtype=torch.float64)
    whole, end = ours(x)
    state, hiddens = None, []
    for step in x.split(1, 1):
        hidden, state = ours(step, state)
        hiddens.append(hidden)
    torch.testing.assert_close(torch.cat(hiddens, 1), whole)
    torch.testing.assert_close(state.tensors(), end.tensors())
    weights = list(ours.parameters())
    found = torch.autograd.grad(torch.cat(hiddens, 1).square().sum(), weights)
    torch.testing.assert_close(found, torch.autograd.grad(whole.square().sum(), weights))


def test_the_lstm_step_equals_its_equations_and_passes_gradcheck():
    torch.manual_seed(0)
    gates, more = (torch.randn(2, 12, dtype=torch.float64, requires_grad=True) for _ in range(2))
    cell = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    i, f, g, o = (gates + more).chunk(4, 1)
    after = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    torch.testing.assert_close(
        ops.lstm_step(gates, more, cell), (o.sigmoid() * after.tanh(), after)
    )
    assert torch.autograd.gradcheck(ops.lstm_step, (gates, more, cell))


def test_a_bidirectional_stack_equals_that_of_torch():
    torch.manual_seed(0)
    ours = BidirectionalStack(LSTM, 5, 8, 2).double()
    theirs = torch_lstm(ours)
    x, lengths = torch.randn(4, 7, 5, dtype=torch.float64), torch.tensor([3, 7, 1, 5])
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, (hidden, _) = theirs(packed)
    expected, _ = pad_packed_sequence(expected, batch_first=True)
    found, end = ours(x, lengths)
    words = torch.arange(7) < lengths[:, None]
    torch.testing.assert_close(found[words], expected[words])
    # (L * 2, B, D/2) -> (B, L, D)
    torch.testing.assert_close(end, hidden.unflatten(0, (2, 2)).permute(2, 0, 1, 3).flatten(2))


def test_bfloat16_products_keep_the_cells_in_float32():
    torch.manual_seed(0)
    stack = Stack(LSTM, 16, 16, 2)
    x = torch.randn(4, 8, 16)
    expected, _ = stack(x)
    with torch.autocast("cpu", torch.bfloat16):
        found, state = stack(x)
        found.sum().backward()
    assert found.dtype == state.cell.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in stack.parameters())


UNDER_AUTOCAST = """
import torch
from regard.layers.recurrent import LSTM

torch.manual_seed(0)
layer, x = LSTM(8, 8), torch.randn(2, 5, 8, requires_grad=True)
for given in (x, x.bfloat16()):
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(given, *layer.empty(2, x))[0]
    found.sum().backward()
    assert found.dtype == given.dtype
    assert torch.allclose(found.float(), layer(x, *layer.empty(2, x))[0], atol=1e-2)
assert x.grad.isfinite().all()
"""


def test_recurrent_layers_run_in_bfloat16_on_older_processors():
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, "-c", UNDER_AUTOCAST]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_get_states_as_cudnn_takes_them(kind, monkeypatch, no_kernels):
    name = {"rnn": "rnn_tanh"}.get(kind, kind)
    kernel, layers = getattr(torch, name), []

    def checked(x, states, *rest):
        states = states if isinstance(states, tuple) else (states,)
        assert all(state.is_contiguous() for state in states)
        layers.append(states)
        return kernel(x, states if kind == "lstm" else states[0], *rest)

    monkeypatch.setattr(torch, name, checked)
    ours, _ = twins(kind)
    x, state = torch.randn(3, 7, 5, dtype=torch.float64), random_state(ours, 3, kind)
    assert not state.hidden[:, 0].is_contiguous()
    for learning in (True, False):
        with torch.set_grad_enabled(learning):
            ours(x, state)
    assert len(layers) == 4
