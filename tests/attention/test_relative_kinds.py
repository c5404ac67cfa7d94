"""Relative positions against their formulas, one query, key and head at a time, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from regard.attention.attend import attend
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
from regard.layers.positions import sinusoid
from regard.ops import ALL_KEYS, KeyMask

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


def pair_terms(made: RelativePositions, name: str, head: int, i: int, j: int, query: Tensor):
    """What a pair adds to the unscaled score and to the value, by the formula of the paper."""
    zero = torch.zeros(K, dtype=torch.float64)
    if name == "shaw":
        row = max(-CLIP, min(CLIP, j - i)) + CLIP
        vectors = made.layers[0]
        return query @ vectors.keys[row], zero, vectors.values[row]
    if name == "t5":
        bucket = two_sided_bucket(torch.tensor(i - j), 8)
        return math.sqrt(K) * made.tables[0].values.weight[bucket, head], zero, zero
    learned = made.layers[0]
    r = learned.distance(sinusoid(torch.tensor(i - j), D).double()).unflatten(-1, (HEADS, K))[head]
    return (query + learned.position_bias[head, 0]) @ r, learned.content_bias[head, 0], zero


def naive(layer: SelfAttention, made: RelativePositions, name: str, hidden: Tensor, allowed):
    """Attention with relations, pair by pair."""
    projected = layer.query_key_value(hidden).unflatten(-1, (3, HEADS, K))
    rows = []
    for b in range(hidden.size(0)):
        for i in range(hidden.size(1)):
            heads = []
            for h in range(HEADS):
                query, scores, values = projected[b, i, 0, h], [], []
                keys = [j for j in range(hidden.size(1)) if allowed(b, i, j)]
                for j in keys:
                    added, content, value = pair_terms(made, name, h, i, j, query)
                    scores.append(((query + content) @ projected[b, j, 1, h] + added) / K**0.5)
                    values.append(projected[b, j, 2, h] + value)
                weights = torch.stack(scores).softmax(0)
                heads.append(weights @ torch.stack(values))
            rows.append(torch.cat(heads))
    return layer.output(torch.stack(rows).view(hidden.shape))


@pytest.mark.parametrize("name", ["shaw", "t5", "transformer-xl"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_relations_equals_its_formula(name, causal):
    layer, made = attention(), positions(name, causal)
    hidden = torch.randn(2, 6, D, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([6, 4])
    batch = Sequences(torch.zeros(2, 6, dtype=torch.long), lengths)
    mask = batch.causal_mask() if causal else batch.padding_mask()
    found = layer(hidden, mask, relation=made.of(batch)[0])
    expected = naive(
        layer, made, name, hidden, lambda b, i, j: j <= i if causal else j < lengths[b]
    )
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-7)
    weigh, learned = torch.randn_like(found), [hidden, *layer.parameters(), *made.parameters()]
    grads = torch.autograd.grad((found * weigh).sum(), learned)
    wanted = torch.autograd.grad((expected * weigh).sum(), learned)
    torch.testing.assert_close(grads, wanted, atol=1e-6, rtol=1e-6)


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


def test_values_of_relations_are_weighed_with_the_weights_after_dropout():
    query, key, value = torch.randn(3, 2, HEADS, 5, K).unbind()
    for rate in (0.0, 0.4):
        torch.manual_seed(2)
        without = attend(query, key, value, dropout=rate)
        torch.manual_seed(2)
        found = attend(query, key, value, dropout=rate, value_term=lambda w: w @ (2 * value))
        torch.testing.assert_close(found, 3 * without)


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


def test_a_subset_of_tokens_equals_those_of_all():
    layer, made = attention(), positions("shaw")
    batch = Sequences.full(torch.zeros(2, 5, dtype=torch.long))
    hidden, relation = torch.randn(2, 5, D, dtype=torch.float64), made.of(batch)[0]
    whole = layer(hidden, ALL_KEYS, relation=relation)
    first = layer(hidden, ALL_KEYS, relation=relation, tokens=batch.first_tokens())
    torch.testing.assert_close(first, whole[:, :1])
