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
def test_the_feed_forward_layer_equals_its_formula(activation):
    layer = FeedForward(4, 9, activation=activation).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    torch.nn.init.normal_(layer.inner.bias)
    inner = FORMULAS[activation](x @ layer.inner.weight.T + layer.inner.bias)
    torch.testing.assert_close(layer(x), inner @ layer.outer.weight.T + layer.outer.bias)


def test_feed_forward_dropout_is_before_the_outer_matrix():
    layer, x = FeedForward(4, 64, dropout=0.5), torch.randn(2, 3, 4)
    torch.nn.init.ones_(layer.outer.weight)  # all outputs are the same sum of what is kept
    dropped = layer(x)
    torch.testing.assert_close(dropped, dropped[..., :1].expand_as(dropped))
    assert not torch.equal(layer(x), dropped) and dropped.ne(0).all()
    layer.eval()
    assert torch.equal(layer(x), layer(x)) and not torch.equal(layer(x), dropped)
