"""Relative positions against their formulas, one query, key and head at a time, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.multihead import SelfAttention
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

D, HEADS, K, CLIP = 12, 3, 4, 2


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


def test_values_of_relations_are_weighed_with_the_weights_after_dropout():
    query, key, value = torch.randn(3, 2, HEADS, 5, K).unbind()
    for rate in (0.0, 0.4):
        torch.manual_seed(2)
        without = attend(query, key, value, dropout=rate)
        torch.manual_seed(2)
        found = attend(query, key, value, dropout=rate, value_term=lambda w: w @ (2 * value))
        torch.testing.assert_close(found, 3 * without)
