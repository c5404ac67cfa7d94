"""AWD-LSTM against its equations in float64, with the masks that were drawn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.layers.convolution import BatchNormDense
from regard.layers.dropout import EmbeddingDropout, VariationalDropout
from regard.layers.recurrent import BPTTWindows, WeightDropLSTM
from regard.layers.task_heads import ConcatPooling
from regard.models import size_of
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.recurrent import AwdLstm, AwdLstmConfig

NONE = dict.fromkeys(
    [f"{kind}_dropout" for kind in ("embedding", "input", "weight", "hidden", "output")], 0.0
)
V, D, H = 11, 6, 10


def model(**options) -> AwdLstm:
    torch.manual_seed(0)
    sizes = dict(vocab_size=V, d_model=D, d_hidden=H, layers=3)
    return AwdLstm(AwdLstmConfig(**sizes | NONE | options)).double()


def ids(rows: int = 3, count: int = 5) -> Tensor:
    return torch.randint(V, (rows, count), generator=torch.Generator().manual_seed(1))


def lstm(x: Tensor, weights: list[Tensor], hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
    """Torch's, whose second bias is zero: all hidden states, and the last hidden and cell state."""
    weights, state = [*weights, torch.zeros_like(weights[2])], (hidden[None], cell[None])
    outputs, hidden, cell = torch.lstm(x, state, weights, True, 1, 0.0, True, False, True)
    return outputs, hidden[0], cell[0]


def reference(m: AwdLstm, tokens: Tensor, masks: dict[str, Tensor]) -> Tensor:
    """Hidden states that the output reads; each mask is that of the formula, 1 / (1 - p) or 0."""
    x = (m.embedding.weight * masks.get("embedding", torch.ones(V, 1)))[tokens]
    x = x * masks.get("input", 1)
    for n, layer in enumerate(m.layer_groups):
        u = layer.recurrent.weight * masks.get(f"weight{n}", 1)
        zeros = x.new_zeros(len(x), layer.d_model)
        weights = [layer.input.weight, u, layer.input.bias + layer.recurrent.bias]
        x, _, _ = lstm(x, weights, zeros, zeros)
        if n < 2:
            x = x * masks.get(f"hidden{n}", 1)
    return x * masks.get("output", 1)


def recorded(m: AwdLstm) -> dict[str, Tensor]:
    """Masks that each dropout draws, filled in as the model runs."""
    found: dict[str, Tensor] = {}

    def keep(name, each=False):
        def hook(module, inputs, output):
            at = f"{name}{sum(key.startswith(name) for key in found)}" if each else name
            where = output != 0
            found[at] = torch.where(where, output / torch.where(where, inputs[0], 1), 0)

        return hook

    m.input_dropout.register_forward_hook(keep("input"))
    m.output_dropout.register_forward_hook(keep("output"))
    m.hidden_dropout.register_forward_hook(keep("hidden", each=True))
    for layer in m.layer_groups:
        layer.weight_dropout.register_forward_hook(keep("weight", each=True))
    return found


@pytest.mark.parametrize(
    "option",
    ["input_dropout", "weight_dropout", "hidden_dropout", "output_dropout", "all"],
)
def test_each_dropout_is_its_formula_with_the_same_mask(option):
    """Forward and backward, in float64; the masks are read off what went in and came out."""
    chosen = dict.fromkeys(NONE, 0.4) | {"embedding_dropout": 0.0} if option == "all" else {}
    m = model(**(chosen or {option: 0.4})).train()
    masks, tokens = recorded(m), ids()
    out = m(tokens).hidden
    mix = torch.randn(out.shape, dtype=torch.double)
    (out * mix).sum().backward()
    found = {name: one.grad.clone() for name, one in m.named_parameters() if one.grad is not None}
    masks = {name: mask.detach() for name, mask in masks.items()}
    m.zero_grad()
    expected = reference(m, tokens, masks)
    (expected * mix).sum().backward()
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
    for name, one in m.named_parameters():
        if name != "head.bias":
            torch.testing.assert_close(found[name], one.grad, atol=1e-11, rtol=1e-9)
    drawn = torch.cat([mask.flatten() for mask in masks.values()]).unique()
    assert set(drawn.round(decimals=3).tolist()) == {0.0, 1.0, round(1 / 0.6, 3)} - (
        set() if option != "all" else {1.0}
    )


def test_embedding_dropout_drops_rows_of_the_matrix():
    drop = EmbeddingDropout(V, 0.4).train()
    matrix = torch.randn(V, D, dtype=torch.double, requires_grad=True)
    tokens = ids(4, 9)
    torch.manual_seed(7)
    out = drop(matrix[tokens], tokens)
    torch.manual_seed(7)
    kept = drop(torch.ones(V, 1), torch.arange(V))[:, :1].double()  # the same draw
    expected = (matrix * kept)[tokens]
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-6)
    assert set(kept.flatten().gt(0).tolist()) == {True, False}
    assert torch.equal(drop.eval()(matrix[tokens], tokens), matrix[tokens])


def test_a_variational_mask_is_the_same_at_all_steps_and_another_in_each_row_and_pass():
    drop = VariationalDropout(0.5).train()
    first, second = drop(torch.ones(3, 4, 50)), drop(torch.ones(3, 4, 50))
    assert torch.equal(first, first[:, :1].expand(3, 4, 50))
    assert not torch.equal(first[0, 0], first[1, 0]) and not torch.equal(first, second)
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert drop(torch.ones(3, 0, 50)).shape == (3, 0, 50)


# ---- an encoder


def test_windows_carry_the_state_and_the_last_of_each_row_learn():
    """Against a loop over rows: state detached between windows, gradient in the last ones alone."""
    torch.manual_seed(3)
    layer = WeightDropLSTM(3, 4, 0.0).double().train()
    lengths, width, learning = torch.tensor([11, 4, 7, 1, 0]), 3, 2
    x = torch.randn(5, 11, 3, dtype=torch.double, requires_grad=True)
    out = BPTTWindows(lengths, width, learning).read(layer, x)
    keep = (torch.arange(11) < lengths[:, None])[..., None]
    mix = torch.randn(out.shape, dtype=torch.double) * keep
    (out * mix).sum().backward()
    found = {name: one.grad.clone() for name, one in layer.named_parameters()}, x.grad.clone()
    layer.zero_grad()
    x.grad = None
    weights = [layer.input.weight, layer.recurrent.weight, layer.input.bias + layer.recurrent.bias]
    expected = torch.zeros_like(out)
    for row, length in enumerate(lengths.tolist()):
        starts = list(range(0, length, width))
        hidden = cell = torch.zeros(1, 4, dtype=torch.double)
        for n, start in enumerate(starts):
            part = slice(start, min(start + width, length))
            one, hidden, cell = lstm(x[row : row + 1, part], weights, hidden, cell)
            expected[row, part] = one[0].detach()
            if n >= len(starts) - learning:
                (one * mix[row, part]).sum().backward()
            hidden, cell = hidden.detach(), cell.detach()
    torch.testing.assert_close(out * keep, expected)
    for name, one in layer.named_parameters():
        torch.testing.assert_close(found[0][name], one.grad)
    torch.testing.assert_close(found[1], x.grad)


def test_a_backward_encoder_is_the_forward_one_on_turned_texts():
    forward, backward = model().eval(), model(backward=True).eval()
    backward.load_state_dict(forward.state_dict())
    tokens, lengths = ids(3, 6), torch.tensor([6, 4, 1])
    turned = tokens.clone()
    for row, length in enumerate(lengths.tolist()):
        turned[row, :length] = tokens[row, :length].flip(0)
    found = backward.encode(Sequences(tokens, lengths))
    expected = forward.encode(Sequences(turned, lengths))
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(found[row, :length], expected[row, :length].flip(0))
    pooled = ConcatPooling()(expected, Sequences(turned, lengths))
    torch.testing.assert_close(
        ConcatPooling(backward=True)(found, Sequences(tokens, lengths)), pooled
    )


def test_concat_pooling_is_last_max_and_mean_of_each_row():
    hidden, lengths = torch.randn(4, 5, 3, dtype=torch.double), torch.tensor([5, 2, 1, 0])
    found = ConcatPooling()(hidden, Sequences(ids(4, 5), lengths))
    for row, length in enumerate(lengths.tolist()):
        own = hidden[row, :length]
        parts = [own[-1], own.max(0).values, own.mean(0)] if length else [torch.zeros(3)] * 3
        torch.testing.assert_close(found[row], torch.cat(parts).to(found))


def test_the_classifier_is_the_printed_one():
    """torch's own modules in the order of the printout, with the same weights."""
    head = model(inner=4).new_head("classes", 2)
    inner = head.inner
    assert isinstance(inner, BatchNormDense)
    theirs = nn.Sequential(
        nn.BatchNorm1d(18), nn.Dropout(0.4), nn.Linear(18, 4), nn.ReLU(), nn.BatchNorm1d(4),
        nn.Dropout(0.1), nn.Linear(4, 2),
    )  # fmt: skip
    ours = [inner.norm_in, inner.dense, inner.norm_out, head.output]
    for one, other in zip(ours, [theirs[0], theirs[2], theirs[4], theirs[6]], strict=True):
        other.load_state_dict(one.state_dict())
    assert (inner.dropout.probability, head.dropout.probability) == (0.4, 0.1)
    for part in (inner.dropout, head.dropout):
        part.probability = 0.0
    theirs[1].p = theirs[5].p = 0.0
    pooled = torch.randn(5, 18)
    for mode in (True, False):
        torch.testing.assert_close(head.train(mode).scores(pooled), theirs.train(mode)(pooled))
    for one, other in zip(ours[:3:2], (theirs[0], theirs[4]), strict=True):
        torch.testing.assert_close(one.running_var, other.running_var)
    alone = head.train().scores(pooled[:1])  # one row has no variance
    torch.testing.assert_close(alone, head.eval().scores(pooled[:1]))


def test_the_preset_has_the_printed_modules_and_their_parameters():
    """60,003 words of 300; LSTMs 300 -> 1150 -> 1150 -> 300; a classifier 900 -> 50 -> 2."""
    with torch.device("meta"):
        encoder = AwdLstm(AwdLstmConfig(vocab_size=60003, **AwdLstm.SIZES["ulmfit-300"]))
        whole = EncoderWithHeads(encoder, {"classes": encoder.new_head("classes", 2)})
        lstms = [nn.LSTM(300, 1150), nn.LSTM(1150, 1150), nn.LSTM(1150, 300)]
        printed = [
            nn.Embedding(60003, 300), *lstms, nn.BatchNorm1d(900), nn.Linear(900, 50),
            nn.BatchNorm1d(50), nn.Linear(50, 2),
        ]  # fmt: skip
    count = sum(one.numel() for part in printed for one in part.parameters())
    output_bias = 60003  # of the language model, which the printed classifier has no more
    assert sum(one.numel() for one in whole.parameters()) - output_bias == count == 37_058_752
    assert [(one.input.in_features, one.d_model) for one in encoder.layer_groups] == [
        (300, 1150), (1150, 1150), (1150, 300),
    ]  # fmt: skip
    assert size_of(encoder) == "ulmfit-300"
