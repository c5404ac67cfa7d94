"""Multi-head attention against torch's own module; shared memories, caches and dropout."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from regard.attention.cache import KeyValueCache
from regard.attention.capture import listening
from regard.attention.masks import causal, padding
from regard.attention.multihead import (
    CrossAttention,
    Memory,
    PackedLinear,
    SelfAttention,
)


class Recorder:
    def __init__(self):
        self.taken = []

    def wants(self, point):
        return True

    def take(self, point, weights):
        self.taken.append(weights)


def with_capture(function):
    listener = Recorder()
    token = listening.set(listener)
    try:
        return function(), listener.taken
    finally:
        listening.reset(token)


def torchs(ours: SelfAttention, d_model: int) -> nn.MultiheadAttention:
    """torch's module with our weights: it fuses query, key and value in our order."""
    theirs = nn.MultiheadAttention(d_model, ours.heads, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.query_key_value.weight)
        theirs.in_proj_bias.copy_(ours.query_key_value.bias.normal_())
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias.normal_())
    return theirs


def test_self_attention_equals_that_of_torch():
    ours = SelfAttention(12, 3, kind="encoder")
    theirs = torchs(ours, 12)
    x, lengths = torch.randn(2, 5, 12), torch.tensor([5, 3])
    allowed = (causal() & padding(lengths)).resolve(5, 5, sequences=2)
    blocked = ~allowed.grid.expand(2, 3, 5, 5).flatten(0, 1)
    judge, weights = theirs(x, x, x, attn_mask=blocked, average_attn_weights=False)
    out, taken = with_capture(lambda: ours(x, allowed))
    torch.testing.assert_close(out, judge)
    torch.testing.assert_close(ours(x, allowed), judge)
    torch.testing.assert_close(taken[0], weights)


def test_cross_attention_to_a_shared_memory_equals_that_to_copies_of_it():
    ours = CrossAttention(6, 2)
    hidden, memory = torch.randn(6, 3, 6), torch.randn(2, 4, 6)
    lengths = torch.tensor([4, 2])
    read = ours.read(memory, padding(lengths).resolve(1, 4, sequences=2))
    shared, seen = with_capture(lambda: ours(hidden, read))
    copies = [t.repeat_interleave(3, 0) for t in (read.key, read.value)]
    mask = padding(lengths.repeat_interleave(3)).resolve(1, 4, sequences=6)
    copied, seen_copies = with_capture(lambda: ours(hidden, Memory(*copies, mask)))
    torch.testing.assert_close(shared, copied)
    torch.testing.assert_close(ours(hidden, read), copied)
    assert seen[0].shape == (6, 2, 3, 4)
    torch.testing.assert_close(seen[0], seen_copies[0])


def test_self_attention_with_a_cache_equals_the_full_pass():
    ours = SelfAttention(8, 2, kind="decoder")
    x = torch.randn(2, 5, 8)
    full = ours(x, causal().resolve(5, 5))
    cache = KeyValueCache.empty(2, 1, 2, 4, capacity=1, like=x)
    pieces = []
    for start, count in ((0, 2), (2, 1), (3, 2)):
        cache = cache.reserve(count)
        allowed = causal().resolve(cache.positions(count), start + count)
        pieces.append(ours(x[:, start : start + count], allowed, cache=cache.layer(0)))
        cache = cache.advance(count)
    torch.testing.assert_close(torch.cat(pieces, 1), full)


def test_each_part_of_a_packed_linear_is_initialized_as_if_alone():
    torch.manual_seed(0)
    bound = math.sqrt(6 / (64 + 64))
    for part in PackedLinear(64, 64, parts=3).weight.chunk(3):
        assert part.abs().max() <= bound
        assert part.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_attention_dropout_acts_only_in_training():
    ours, x = SelfAttention(8, 2, kind="encoder", dropout=0.5), torch.randn(2, 5, 8)
    first, second = ours(x), ours(x)
    assert not torch.equal(first, second)
    ours.eval()
    torch.testing.assert_close(ours(x), ours(x), atol=0, rtol=0)


@pytest.mark.parametrize("heads", [0, 3, -2])
def test_heads_that_do_not_divide_d_model_raise_an_error(heads):
    with pytest.raises(ValueError, match=f"`heads` must divide `d_model`, but they are {heads}"):
        SelfAttention(8, heads, kind="encoder")
