"""Relative positions: steps of rows of different lengths, and pruned heads."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from regard.attention.cache import KeyValueCache
from regard.attention.multihead import SelfAttention
from regard.attention.pruning import Prunable, heads_masked, prune_heads
from regard.attention.relative import (
    RelativeBias,
    RelativePositions,
    ShawPositions,
    T5Positions,
    TransformerXLPositions,
    two_sided_bucket,
)
from regard.data.batches import Sequences
from regard.ops import KeyMask

D, HEADS, K, CLIP = 12, 3, 4, 2


@dataclass(frozen=True)
class Config:
    pruned: tuple = ()


def attention(kind: str = "encoder", dropout: float = 0.0) -> SelfAttention:
    torch.manual_seed(0)
    made = SelfAttention(D, HEADS, kind=kind, dropout=dropout).double()
    torch.nn.init.normal_(made.query_key_value.bias)
    return made


def positions(name: str, causal: bool = False, layers: int = 1) -> RelativePositions:
    torch.manual_seed(1)
    made: RelativePositions
    match name:
        case "shaw":
            made = ShawPositions(layers, K, CLIP)
        case "t5":
            made = T5Positions(layers, [RelativeBias(HEADS, two_sided_bucket, 8)])
        case "transformer-xl":
            made = TransformerXLPositions(layers, D, HEADS, causal=causal)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made.double()


@pytest.mark.parametrize("name", ["shaw", "t5", "transformer-xl"])
def test_steps_of_rows_of_different_lengths_equal_the_full_pass(name):
    layer, made = attention("decoder"), positions(name, causal=True)
    hidden, begins = torch.randn(3, 9, D, dtype=torch.float64), torch.tensor([2, 5, 4])
    whole = layer(hidden, KeyMask.causal(9), relation=made.between(*[torch.arange(9)] * 2)[0])
    cache = KeyValueCache.empty(3, 1, HEADS, K, like=hidden).reserve(5)
    layer(hidden[:, :5], cache.mask(5), relation=made.after(cache, 5)[0], cache=cache.layer(0))
    cache = cache.advance(5).truncate(begins)
    for step, count in ((0, 1), (1, 3)):
        cache = cache.reserve(count)
        at = (begins[:, None] + step + torch.arange(count))[..., None].expand(-1, -1, D)
        found = layer(
            hidden.gather(1, at),
            cache.mask(count),
            relation=made.after(cache, count)[0],
            cache=cache.layer(0),
        )
        torch.testing.assert_close(found, whole.gather(1, at))
        cache = cache.advance(count)


@pytest.mark.parametrize("name", ["shaw", "t5", "transformer-xl"])
def test_pruned_heads_leave_the_others_as_masked_ones(name):
    class Holder(torch.nn.Module, Prunable):
        def __init__(self):
            super().__init__()
            self.layer, self.made = attention(), positions(name)
            self.config = Config()

        def forward(self, hidden: Tensor) -> Tensor:
            batch = Sequences.full(torch.zeros(hidden.shape[:2], dtype=torch.long))
            return self.layer(hidden, relation=self.made.of(batch)[0])

    model, hidden = Holder(), torch.randn(2, 5, D, dtype=torch.float64)
    with heads_masked(model, {1: [2]}):
        expected = model(hidden)
    prune_heads(model, {1: [2]})
    torch.testing.assert_close(model(hidden), expected)
    prune_heads(model, {1: [1, 3]})
    assert torch.allclose(model(hidden), model.layer.output.bias)
