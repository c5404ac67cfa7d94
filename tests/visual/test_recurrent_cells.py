"""Cells and gradient norms of recurrent models."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch.nn.functional import cross_entropy

from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.models.elmo import Elmo, ElmoConfig
from regard.models.recurrent import AwdLstm, AwdLstmConfig, RecurrentConfig, RecurrentLanguageModel
from regard.text import train
from regard.visual import CellText, cell_activation, gradient_curves, gradient_norms
from regard.visual import recurrent_cells as module

TEXT = 'He said:\n"To be (or not)" and left.\n'
TOKENIZER = train("characters", [TEXT], 40)


def build(kind, **options):
    torch.manual_seed(1)
    sizes = dict(vocab_size=TOKENIZER.vocab_size, d_model=6, layers=2) | options
    if kind == "awd-lstm":
        return AwdLstm(AwdLstmConfig(d_hidden=9, **sizes)).double()
    config = RecurrentConfig(cell=kind, init_range=0.7, dropout=0.5, **sizes)
    return RecurrentLanguageModel(config).double()


def stepped(model, ids):
    """(L) x (T, D): what `prefill` leaves after each token, cells behind a tanh."""
    state, found = model.eval().empty(1, torch.float64), []
    with torch.no_grad():
        for token in ids:
            state = model.prefill(torch.tensor([[token]]), state)
            parts = [state] if not isinstance(model, AwdLstm) else [state.wide, state.last]
            read = [part.cell.tanh() if part.cell.numel() else part.hidden for part in parts]
            found.append([layer[0] for part in read for layer in part.unbind(1)])
    return [torch.stack(layer) for layer in zip(*found, strict=True)]


def all_values(model, text, tokenizer=TOKENIZER):
    """The values of every cell, through the picture: layer -> (T, D)."""
    widths = module.reader_of(model).widths
    return [
        torch.tensor(
            [
                cell_activation(model, tokenizer, text, layer=n, number=m + 1).values
                for m in range(width)
            ]
        ).T
        for n, width in enumerate(widths, 1)
    ]


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm", "awd-lstm"])
@pytest.mark.parametrize("chunk", [3, 256])
def test_every_cell_of_every_layer_equals_steps_of_the_model(kind, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)  # the state goes on from chunk to chunk
    model = build(kind).train()
    found, expected = all_values(model, TEXT), stepped(model, TOKENIZER.encode(TEXT).ids)
    assert len(found) == len(expected) == 2
    for values, judge in zip(found, expected, strict=True):
        assert torch.allclose(values, judge.float(), atol=1e-6)


def test_a_backward_model_reads_from_the_end_and_keeps_the_order_of_the_text():
    model, forward = build("awd-lstm", backward=True), build("awd-lstm")
    found = cell_activation(model, TOKENIZER, TEXT, layer=1, number=2).values
    turned = cell_activation(forward, TOKENIZER, TEXT[::-1], layer=1, number=2).values
    assert numpy.allclose(found, turned[::-1], atol=1e-6)


@pytest.fixture
def elmo():
    torch.manual_seed(2)
    tokenizer = train("words", ["green grass is green"], 9)
    model = Elmo(ElmoConfig(9, d_model=8, d_cell=5, filters=((1, 3), (2, 4)), d_character=4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return model.eval(), tokenizer


def test_elmo_has_the_cells_of_both_directions(elmo):
    model, tokenizer = elmo
    text = "zebras like green grass"
    tokenizer = model.input_tokenizer(tokenizer)
    ids = tokenizer.encode(text).ids
    for words in range(1, 5):  # the state after a prefix, read at once
        batch = model.complete(Sequences.of([ids[:words]], 0), tokenizer)
        behind = model.complete(Sequences.of([ids[4 - words :]], 0), tokenizer)
        with torch.no_grad():
            forward = model.carried(batch)[1].forward.cell[0].tanh()
            backward = model.carried(behind)[1].backward.cell[0].tanh()
        for n in range(2):
            for layer, judge, word in ((n + 1, forward, words - 1), (n + 3, backward, 4 - words)):
                shown = cell_activation(model, tokenizer, text, layer=layer, number=4)
                values = [value for _, value in shown.pieces if value is not None]
                assert values[word] == pytest.approx(float(judge[n, 3]), abs=1e-6)
    title = cell_activation(model, tokenizer, text, layer=3, number=1).title
    assert title == "layer 1, backward, cell 1"


# ---------------------------------------------------------------------------------- odd input


@pytest.mark.parametrize("cell", [(0, 1), (3, 1), (1, 7), (2, 0)])
def test_a_cell_that_does_not_exist_is_an_error(cell):
    with pytest.raises(ConfigError, match="There is no cell .* layer: {1: 6, 2: 6}"):
        cell_activation(build("lstm"), TOKENIZER, TEXT, layer=cell[0], number=cell[1])


# ---------------------------------------------------------------------------------- the picture


def test_the_terminal_shows_every_character_and_its_mark():
    shown = CellText.of("ab\nc d", [(n, n + 1) for n in range(6)], [-1, 1, 0, 1, -1, 0.99])
    lines = shown.text(40).splitlines()
    assert lines == ["ab↵", " @=", "c d", "@ @", "blank = -1, @ = 1"]
    narrow = shown.text(2).splitlines()
    assert narrow[::2] == ["ab", "↵", "c ", "d", "blank = -1, @ = 1"]


QUESTION = "to be or not to be, that is"
QUESTION_TOKENIZER = train("characters", [QUESTION], 30)


def model_of(cell, **options):
    torch.manual_seed(5)
    sizes = (
        dict(vocab_size=QUESTION_TOKENIZER.vocab_size, d_model=5, layers=2, init_range=0.8)
        | options
    )
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
    found = gradient_norms(model, QUESTION_TOKENIZER, QUESTION)
    ids = QUESTION_TOKENIZER.encode(QUESTION).ids
    expected = naive(model, model.stack.layers, step, ids, [5, 5])
    assert found.shape == (2, len(ids) - 1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-15)
    assert model.training


def test_awd_lstm_equals_naive_autograd():
    torch.manual_seed(6)
    config = AwdLstmConfig(QUESTION_TOKENIZER.vocab_size, d_model=4, d_hidden=6, layers=3)
    model = AwdLstm(config).double()
    layers = [*model.layers, model.last]
    ids = QUESTION_TOKENIZER.encode(QUESTION).ids
    expected = naive(model, layers, lstm, ids, [6, 6, 4])
    torch.testing.assert_close(
        gradient_norms(model, QUESTION_TOKENIZER, QUESTION), expected, rtol=1e-9, atol=0
    )


def test_windows_are_read_alone_and_their_norms_averaged():
    model = model_of("gru")
    parts = [QUESTION[start : start + 7] for start in (0, 7, 14)]
    alone = torch.stack([gradient_norms(model, QUESTION_TOKENIZER, part) for part in parts])
    found = gradient_norms(model, QUESTION_TOKENIZER, QUESTION[:27], length=6)
    torch.testing.assert_close(found, alone.mean(0))


def test_curves_show_models_side_by_side(tmp_path):
    norms = {
        cell: gradient_norms(model_of(cell), QUESTION_TOKENIZER, QUESTION)
        for cell in ("rnn", "lstm")
    }
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
