"""Positions against the paper's closed formula in float64."""

from __future__ import annotations

import math

import pytest
import torch
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

from regard.data.batches import Sequences
from regard.layers.positions import (
    LearnedPositions,
    RobertaPositions,
    SinusoidalPositions,
    sinusoid,
)


@pytest.mark.parametrize("d_model", [2, 8, 512])
def test_sinusoids_equal_the_formula_up_to_position_10_000(d_model):
    found = sinusoid(torch.arange(10_001), d_model)
    assert found.dtype == torch.float32 and found.shape == (10_001, d_model)
    for position in (0, 1, 2, 17, 255, 256, 999, 9_999, 10_000):
        for i in range(0, d_model, max(2, d_model // 8)):
            angle = position / 10000 ** (i / d_model)
            pair = found[position, i : i + 2].tolist()
            assert pair == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)


def test_sinusoidal_positions_grow_on_demand_and_keep_their_type():
    layer = SinusoidalPositions(8)
    assert list(layer.parameters()) == [] and layer.state_dict() == {}
    far = layer(3, start=9_998)
    torch.testing.assert_close(far, sinusoid(torch.arange(9_998, 10_001), 8), atol=0, rtol=0)
    torch.testing.assert_close(layer(5), sinusoid(torch.arange(5), 8), atol=0, rtol=0)
    half = SinusoidalPositions(8).to(torch.bfloat16)
    assert half(3).dtype == half(3000).dtype == torch.bfloat16
    assert layer(0).shape == (0, 8) and SinusoidalPositions(300)(280).shape == (280, 300)


def test_learned_positions_beyond_the_table_raise_an_error():
    layer = LearnedPositions(6, 4)
    assert torch.equal(layer(2, start=3), layer.vectors.weight[3:5])
    assert layer(6).shape == (6, 4)
    layer(4, start=2).sum().backward()
    assert layer.vectors.weight.grad.sum(-1).tolist() == [0, 0, 4, 4, 4, 4]
    with pytest.raises(ValueError, match="reaches position 7, but .* only 6 positions"):
        layer(4, start=3)


def test_learned_positions_may_differ_between_sequences():
    learned = LearnedPositions(5, 4)
    positions = torch.tensor([[0, 1], [3, 4]])
    assert torch.equal(learned.at(positions, 5), learned.vectors.weight[positions])
    # The longest sequence may have left the batch.
    assert torch.equal(learned.at(positions, 9), learned.vectors.weight[positions])
    with pytest.raises(ValueError, match="reaches position 6, .* learned only 5"):
        learned.at(positions + 1, 6)
    assert learned.at(positions[:0], 9).shape == (0, 2, 4)


class Cache:
    """The lengths of a decoder's sequences."""

    def __init__(self, *lengths: int):
        self.lengths, self.longest = torch.tensor(lengths), max(lengths)
        self.equal_lengths = len(set(lengths)) == 1

    def positions(self, count):
        return self.lengths[:, None] + torch.arange(count)


def test_roberta_positions_of_a_continuation_are_those_of_transformers():
    layer = RobertaPositions(10, 4, pad=3)
    theirs = RobertaEmbeddings.create_position_ids_from_input_ids
    for past in (0, 2, 7):
        ids = theirs(torch.tensor([[5, 6, 7]]), padding_idx=3, past_key_values_length=past)
        expected = layer.vectors.weight[ids]
        assert torch.equal(layer.after(Cache(past, past), 3), expected[0])
        assert torch.equal(layer.after(Cache(past, 1), 3)[:1], expected)
    assert torch.equal(layer(3), layer.of(Sequences.of([[5, 6, 7]], pad=3))[0])
    for cache in (Cache(8, 8), Cache(8, 1)):
        with pytest.raises(ValueError, match="reaches position 11, but .* only 10 positions"):
            layer.after(cache, 3)
