"""The feed-forward layer is its formula."""

from __future__ import annotations

import pytest
import torch

from regard.layers.feedforward import FeedForward

FORMULAS = {
    "relu": lambda x: torch.where(x > 0, x, 0.0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "swish": lambda x: x / (1 + torch.exp(-x)),
}


@pytest.mark.parametrize("activation", FORMULAS)
def test_it_is_the_formula(activation):
    layer = FeedForward(4, 9, activation=activation).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    torch.nn.init.normal_(layer.inner.bias)
    inner = FORMULAS[activation](x @ layer.inner.weight.T + layer.inner.bias)
    torch.testing.assert_close(layer(x), inner @ layer.outer.weight.T + layer.outer.bias)


def test_dropout_stands_between_the_two_layers():
    layer, x = FeedForward(4, 64, dropout=0.5), torch.randn(2, 3, 4)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_an_unknown_activation_is_refused_by_name():
    with pytest.raises(ValueError, match="`activation` must be one of relu, gelu, .*, but is 'x'"):
        FeedForward(4, 8, activation="x")
