"""Heads written out in float64: where they read, what they compute, which layers they choose."""

from __future__ import annotations

import pytest
import torch
from random_weights import randomized
from torch import nn

from regard.data.batches import IGNORE, Sequences
from regard.errors import ConfigError
from regard.layers.pooling import ScalarMix, choice_of
from regard.layers.softmax import Softmax
from regard.layers.task_heads import (
    ClassificationHead,
    DenseActivation,
    MaskedLMHead,
    Pooler,
    every_token,
    first_token,
    last_token,
    mean_of_tokens,
)

D = 6


def texts() -> Sequences:
    return Sequences(torch.arange(12).view(3, 4), torch.tensor([4, 1, 3]))


def hidden() -> torch.Tensor:
    return torch.randn(3, 4, D, generator=torch.Generator().manual_seed(0))


def test_poolings_read_tokens_and_no_padding():
    states, rows = hidden(), texts()
    assert every_token(states, rows) is states
    assert torch.equal(first_token(states, rows), states[:, 0])
    ends = [states[0, 3], states[1, 0], states[2, 2]]
    assert torch.equal(last_token(states, rows), torch.stack(ends))
    means = [states[0].mean(0), states[1, 0], states[2, :3].mean(0)]
    torch.testing.assert_close(mean_of_tokens(states, rows), torch.stack(means))
    for pooling in (first_token, last_token, mean_of_tokens):  # whatever stands in the padding
        changed = states.masked_fill(~rows.keep[..., None], 99.0)
        torch.testing.assert_close(pooling(changed, rows), pooling(states, rows))


def test_the_classification_head_equals_its_formula():
    torch.manual_seed(1)
    states, rows = hidden(), texts()
    head = ClassificationHead(D, 3, pooling=first_token, inner=DenseActivation(D, "tanh"))
    inner, output = head.inner.dense, head.output
    wide = states.double()[:, 0] @ inner.weight.double().T + inner.bias.double()
    expected = wide.tanh() @ output.weight.double().T + output.bias.double()
    found = head(states, rows)
    assert head.outputs == 3 and found.shape == (3, 3)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-6)
    pooler = Pooler(D)
    pooler.inner.dense.load_state_dict(inner.state_dict())
    torch.testing.assert_close(pooler(states, rows).double(), wide.tanh(), atol=1e-6, rtol=1e-6)
    assert ClassificationHead(D, 2, pooling=every_token, bias=False)(states, rows).shape == (
        3,
        4,
        2,
    )
    assert ClassificationHead(D, 2, pooling=last_token, bias=False).output.bias is None


def test_dropout_is_before_each_matrix_and_only_in_training():
    torch.manual_seed(1)
    states, rows = torch.ones(400, 1, D), Sequences.of([[1]] * 400, 0)
    head = ClassificationHead(
        D, 2, pooling=first_token, inner=DenseActivation(D, "linear", 0.5), dropout=0.25
    )
    with torch.no_grad():
        for layer in (head.inner.dense, head.output):
            layer.weight.copy_(torch.eye(D)[: layer.out_features])
            layer.bias.zero_()
    out = head.train()(states, rows)
    kept = out != 0
    assert kept.float().mean().item() == pytest.approx(0.5 * 0.75, abs=0.05)
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 2 / 0.75), atol=1e-3, rtol=0)
    assert torch.equal(head.eval()(states, rows), torch.ones(400, 2))


@pytest.mark.parametrize("tied", [True, False])
def test_the_masked_lm_head_equals_the_formula_of_bert(tied):
    torch.manual_seed(2)
    embedding = nn.Embedding(9, D)
    softmax = Softmax(D, 9, tied=embedding if tied else None, bias=True)
    head = randomized(MaskedLMHead(D, "gelu", 1e-12, softmax), 0.3)
    states = hidden()
    assert (head.softmax.weight is embedding.weight) == tied
    dense = head.inner.dense
    x = nn.functional.gelu(states.double() @ dense.weight.double().T + dense.bias.double())
    x = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, unbiased=False)
    x = x * head.norm.weight.double() + head.norm.bias.double()
    expected = x @ softmax.weight.double().T + softmax.bias.double()
    torch.testing.assert_close(head(states, texts()).double(), expected, atol=1e-5, rtol=1e-5)

    targets = torch.full((12,), IGNORE)
    targets[[2, 7]] = torch.tensor([3, 8])
    total, count = head.loss(states.flatten(0, 1), targets)
    logs = expected.flatten(0, 1).log_softmax(-1)
    assert count == 2
    torch.testing.assert_close(total.double(), -(logs[2, 3] + logs[7, 8]), atol=1e-5, rtol=1e-5)
    total, count = head.loss(states.flatten(0, 1), torch.full((12,), IGNORE))
    assert count == 0 and total.item() == 0.0
    total.backward()


STATES = torch.randn(7, 2, 3, 4, generator=torch.Generator().manual_seed(0))  # embeddings, 6 layers
FORMULAS = {
    (0, "concat"): STATES[0],
    (4, "sum"): STATES[4],
    (-1, "concat"): STATES[6],
    ((-7,), "concat"): STATES[0],
    ((-4, -3, -2, -1), "concat"): torch.cat(list(STATES[3:]), -1),
    ((-4, -3, -2, -1), "sum"): STATES[3:].sum(0),
    (tuple(range(7)), "mean"): STATES.mean(0),
    ((5, -1, 0, 5), "concat"): torch.cat([STATES[5], STATES[6], STATES[0], STATES[5]], -1),
    ((0, -2, 3), (1.0, -1.0, 0.5)): STATES[0] - STATES[5] + 0.5 * STATES[3],
}


@pytest.mark.parametrize(("layers", "combine"), FORMULAS, ids=str)
def test_a_layer_choice_equals_its_formula(layers, combine):
    choice = choice_of(layers, combine)
    torch.testing.assert_close(choice(iter(STATES)), FORMULAS[layers, combine])
    assert choice.width(4) == FORMULAS[layers, combine].size(-1)


def test_choosing_a_layer_computes_no_later_ones():
    computed = []

    def states():
        for number, state in enumerate(STATES):
            computed.append(number)
            yield state

    choice_of(0)(states())
    assert computed == [0]
    choice_of([2, 1], "sum")(states())
    assert computed == [0, 0, 1, 2]


@pytest.mark.parametrize(
    "options, message",
    [
        ((7,), "no layer 7, but 6 layers"),
        (([1, 9], "sum"), "no layer 9, but 6 layers"),
        (([1, 2], [1.0]), "`combine` must have a weight for each of the 2 layers"),
        ((ScalarMix.of([1.0, 2.0]),), "A mix of 2 scalars does not fit this model"),
    ],
    ids=str,
)
def test_an_invalid_layer_choice_raises_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        choice_of(*options)(iter(STATES))


def test_layers_of_different_widths_are_concatenated_and_not_added_up():
    states = [torch.ones(1, 2, 3), torch.ones(1, 2, 5)]
    assert choice_of([0, 1])(iter(states)).shape == (1, 2, 8)
    with pytest.raises(ConfigError, match='they are 3 and 5 wide. Use combine="concat"'):
        choice_of([0, 1], "sum")(iter(states))
