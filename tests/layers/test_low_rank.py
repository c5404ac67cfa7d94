"""Low-rank updates against the equation in torch, and their dropout."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from regard.attention.multihead import PackedLinear
from regard.layers.linear import Linear, LowRankLinear, LowRankUpdate

SAME = dict(atol=1e-6, rtol=1e-5)


def adapted(base: Linear, *rows: slice, dropout: float = 0.0) -> LowRankLinear:
    """With updates that are not zero."""
    updates = {
        str(i): LowRankUpdate(base.weight, part, rank=2, scale=1.5, dropout=dropout)
        for i, part in enumerate(rows)
    }
    for update in updates.values():
        torch.nn.init.normal_(update.B)
    return LowRankLinear(base, updates)


def test_an_update_starts_at_zero_and_within_the_bound_of_a_linear_layer():
    torch.manual_seed(0)
    update = LowRankUpdate(torch.empty(300, 100), slice(0, 300), rank=50, scale=2.0)
    assert not update.B.any() and not update.delta().any()
    start = update.A.detach()
    assert 0.099 < start.max() <= 1 / math.sqrt(100)
    assert start.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "rows", [(slice(0, 12),), (slice(8, 12),), (slice(8, 12), slice(0, 4)), (slice(4, 8),)], ids=str
)
def test_outputs_are_those_of_the_changed_matrix(rows, bias):
    torch.manual_seed(0)
    base = PackedLinear(5, 4, parts=3, bias=bias)
    layer, x = adapted(base, *rows), torch.randn(2, 3, 5)
    weight = base.weight.detach().clone()
    for part, update in zip(
        sorted(rows, key=lambda one: one.start), layer.ordered_updates(), strict=True
    ):
        weight[part] += 1.5 * (update.B @ update.A).detach()
    expected = F.linear(x, weight, base.bias)
    torch.testing.assert_close(layer(x), expected, **SAME)
    plain = layer.merged()
    assert type(plain) is PackedLinear and plain.parts == 3
    torch.testing.assert_close(plain(x), expected, **SAME)
    assert not torch.equal(plain.weight, base.weight)  # the base keeps its own


def test_dropout_zeroes_inputs_of_the_update_alone():
    """Outputs of one input are the base's, or the update of the scaled input added to them."""
    torch.manual_seed(0)
    base = Linear(1, 3)
    layer, x = adapted(base, slice(0, 3), dropout=0.25), torch.ones(400, 1)
    full = F.linear(x, layer.ordered_updates()[0].delta()) / 0.75
    added = layer.train()(x) - base(x)
    kept = added.abs().sum(1) > 1e-6
    torch.testing.assert_close(added[kept], full[kept], atol=1e-5, rtol=1e-4)
    assert 0.65 < kept.float().mean() < 0.85
    torch.testing.assert_close(layer.eval()(x) - base(x), full * 0.75, atol=1e-5, rtol=1e-4)
