"""Gradient norms by time step equal autograd on recurrences written out in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from regard.models.recurrent import AwdLstm, AwdLstmConfig, RecurrentConfig, RecurrentLanguageModel
from regard.text import train
from regard.visual import gradient_curves, gradient_norms

TEXT = "to be or not to be, that is"
TOKENIZER = train("characters", [TEXT], 30)


def model_of(cell, **options):
    torch.manual_seed(5)
    sizes = dict(vocab_size=TOKENIZER.vocab_size, d_model=5, layers=2, init_range=0.8) | options
    return RecurrentLanguageModel(RecurrentConfig(cell=cell, dropout=0.4, **sizes)).double()


def rnn(layer, x, h, c):
    return torch.tanh(layer.input(x) + layer.recurrent(h)), c


def gru(layer, x, h, c):
    r, z, n = layer.input(x).chunk(3)
    r_, z_, n_ = layer.recurrent(h).chunk(3)
    r, z = torch.sigmoid(r + r_), torch.sigmoid(z + z_)
    return (1 - z) * torch.tanh(n + r * n_) + z * h, c


def lstm(layer, x, h, c):
    i, f, g, o = (layer.input(x) + layer.recurrent(h)).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def naive(model, layers, step, ids, widths):
    """|dL_T / dh_t| from tensors that keep their gradient, one sequence, one vector at a time."""
    states = [(torch.zeros(d).double(), torch.zeros(d).double()) for d in widths]
    kept = [[] for _ in layers]
    for token in ids[:-1]:
        x = model.embedding.weight[token]
        for n, layer in enumerate(layers):
            states[n] = step(layer, x, *states[n])
            x = states[n][0]
            x.retain_grad()
            kept[n].append(x)
    logits = x @ model.head.weight.T + model.head.bias
    cross_entropy(logits[None], torch.tensor(ids[-1:])).backward()
    return torch.tensor([[state.grad.norm() for state in layer] for layer in kept])


@pytest.mark.parametrize(("cell", "step"), [("rnn", rnn), ("gru", gru), ("lstm", lstm)])
def test_norms_equal_naive_autograd(cell, step):
    model = model_of(cell).train()
    found = gradient_norms(model, TOKENIZER, TEXT)
    ids = TOKENIZER.encode(TEXT).ids
    expected = naive(model, model.stack.layers, step, ids, [5, 5])
    assert found.shape == (2, len(ids) - 1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-15)
    assert model.training


def test_awd_lstm_equals_naive_autograd():
    torch.manual_seed(6)
    config = AwdLstmConfig(TOKENIZER.vocab_size, d_model=4, d_hidden=6, layers=3)
    model = AwdLstm(config).double()
    layers = [*model.layers, model.last]
    ids = TOKENIZER.encode(TEXT).ids
    expected = naive(model, layers, lstm, ids, [6, 6, 4])
    torch.testing.assert_close(gradient_norms(model, TOKENIZER, TEXT), expected, rtol=1e-9, atol=0)


def test_windows_are_read_alone_and_their_norms_averaged():
    model = model_of("gru")
    parts = [TEXT[start : start + 7] for start in (0, 7, 14)]
    alone = torch.stack([gradient_norms(model, TOKENIZER, part) for part in parts])
    found = gradient_norms(model, TOKENIZER, TEXT[:27], length=6)
    torch.testing.assert_close(found, alone.mean(0))


def test_a_contracting_rnn_vanishes_at_the_rate_of_its_matrix():
    model = model_of("rnn", layers=1)
    with torch.no_grad():
        model.embedding.weight.zero_()
        model.stack.layers[0].input.bias.zero_()  # hidden states stay 0, where tanh' = 1
        model.stack.layers[0].recurrent.weight.copy_(0.5 * torch.eye(5))
    (norms,) = gradient_norms(model, TOKENIZER, TEXT)
    rates = norms[:-1] / norms[1:]
    torch.testing.assert_close(rates, torch.full_like(rates, 0.5))


def test_curves_show_models_side_by_side(tmp_path):
    norms = {cell: gradient_norms(model_of(cell), TOKENIZER, TEXT) for cell in ("rnn", "lstm")}
    picture = gradient_curves(norms)
    assert picture.numbers == norms
    together, row = picture.parts
    assert [series.name for series in together.series] == ["rnn", "lstm"]
    assert together.series[0].points[-1] == (
        0.0,
        pytest.approx(float(norms["rnn"][-1, -1].log10())),
    )
    assert together.series[0].points[0][0] == 1 - norms["rnn"].size(1)
    assert [chart.title for chart in row.parts] == ["rnn", "lstm"]
    assert picture.save(tmp_path / "g.png").stat().st_size and "rnn" in picture.text()
    zeros = gradient_curves({"dead": torch.zeros(1, 3)})
    assert zeros.svg() and len(zeros.parts) == 1
