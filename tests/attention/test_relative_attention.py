"""Attention over distances: T5's against `transformers`, Transformer-XL's against its formula."""

from __future__ import annotations

import pytest
import torch
from relative_formula import attend_by_formula, distances

from regard.attention.attend import PLAIN
from regard.attention.masks import causal
from regard.attention.multihead import SelfAttention
from regard.attention.relative import BiasRelation, RelativeBias, causal_bucket, two_sided_bucket
from regard.attention.relative_attention import (
    ByDistance,
    ProjectedDistances,
    RelativeAttention,
    distance_vectors,
)
from regard.layers.positions import sinusoid
from regard.ops import KeyMask

D, HEADS, K = 12, 3, 5  # the width of a head is not D / H


def t5(bucket) -> tuple[SelfAttention, RelativeBias]:
    torch.manual_seed(0)
    attention = SelfAttention(
        D, HEADS, kind="encoder", head_dim=K, score=PLAIN, projection_bias=False
    )
    return attention, RelativeBias(HEADS, bucket, 8)


@pytest.mark.parametrize("is_decoder", [False, True])
def test_t5_attention_equals_that_of_transformers(is_decoder):
    transformers = pytest.importorskip("transformers")
    from transformers.models.t5.modeling_t5 import T5Attention

    config = transformers.T5Config(
        d_model=D, d_kv=K, num_heads=HEADS, dropout_rate=0.0, is_decoder=is_decoder,
        relative_attention_num_buckets=8, relative_attention_max_distance=128,
    )  # fmt: skip
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    ours, bias = (part.double() for part in t5(causal_bucket if is_decoder else two_sided_bucket))
    with torch.no_grad():
        for name, part in zip("qkv", ours.query_key_value.weight.chunk(3), strict=True):
            getattr(theirs, name).weight.copy_(part)
        theirs.o.weight.copy_(ours.output.weight)
        theirs.relative_attention_bias.weight.copy_(bias.values.weight)
    x, count = torch.randn(2, 200, D, dtype=torch.float64), 200
    x.requires_grad_()
    mask = KeyMask.causal(count) if is_decoder else KeyMask()
    positions = torch.arange(count)
    found = ours(x, mask, relation=BiasRelation(bias(positions, positions)))
    added = torch.zeros(1, 1, count, count, dtype=torch.float64)
    if is_decoder:
        added = added.masked_fill(~mask.grid, torch.finfo(torch.float64).min)
    expected = theirs(x, mask=added, cache_position=positions)[0]
    torch.testing.assert_close(found, expected)
    weigh = torch.randn_like(found)
    wanted = torch.autograd.grad(
        (expected * weigh).sum(), [x, theirs.relative_attention_bias.weight]
    )
    grads = torch.autograd.grad((found * weigh).sum(), [x, bias.values.weight])
    torch.testing.assert_close(grads, wanted)


CLAMP = 6


def relative_attention() -> RelativeAttention:
    layer = RelativeAttention(D, HEADS, head_dim=K).double()
    for bias in (layer.content_bias, layer.position_bias):
        torch.nn.init.normal_(bias)
    return layer


@pytest.mark.parametrize(("before", "count"), [(0, 5), (4, 5), (7, 1), (0, 1), (2, 4)])
def test_transformer_xl_attention_equals_its_formula(before, count):
    torch.manual_seed(1)
    layer = relative_attention()
    hidden = torch.randn(2, count, D, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(2, before, D, dtype=torch.float64)
    mask = causal().resolve(torch.arange(before, before + count), before + count)
    vectors = distance_vectors(before + count, D, max_distance=CLAMP, like=hidden)
    apart = distances(count, before + count).clamp(0, CLAMP)
    relations = sinusoid(apart, D).double()
    expected = torch.stack([
        attend_by_formula(layer, own, torch.cat([past, own]), relations)
        for past, own in zip(memory, hidden, strict=True)
    ])  # fmt: skip
    for relation in (ByDistance(vectors), ProjectedDistances(layer.project(vectors))):
        found = layer(hidden, mask, relation, memory=memory)
        torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-7)
        weigh, learned = torch.randn_like(found), [hidden, *layer.parameters()]
        grads = torch.autograd.grad((found * weigh).sum(), learned, retain_graph=True)
        wanted = torch.autograd.grad((expected * weigh).sum(), learned, retain_graph=True)
        torch.testing.assert_close(grads, wanted, atol=1e-6, rtol=1e-6)
