"""Positions against the paper's closed formula in float64."""

from __future__ import annotations

import math

import pytest
import torch

from regard.layers.positions import LearnedPositions, SinusoidalPositions, sinusoid


@pytest.mark.parametrize("d_model", [2, 8, 512])
def test_the_table_is_the_formula_to_position_10_000(d_model):
    found = sinusoid(torch.arange(10_001), d_model)
    assert found.dtype == torch.float32 and found.shape == (10_001, d_model)
    for position in (0, 1, 2, 17, 255, 256, 999, 9_999, 10_000):
        for i in range(0, d_model, max(2, d_model // 8)):
            angle = position / 10000 ** (i / d_model)
            pair = found[position, i : i + 2].tolist()
            assert pair == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)


def test_a_shift_is_a_rotation_of_each_pair():
    # Section 3.5: PE(pos + k) is a linear function of PE(pos).
    table = sinusoid(torch.arange(50), 6).double()
    for pair, frequency in enumerate(10000 ** (-torch.arange(0, 6, 2).double() / 6)):
        c, s = math.cos(3 * frequency), math.sin(3 * frequency)
        turn = torch.tensor([[c, s], [-s, c]]).double()
        here, there = table[:-3, 2 * pair : 2 * pair + 2], table[3:, 2 * pair : 2 * pair + 2]
        torch.testing.assert_close(here @ turn.T, there, atol=1e-6, rtol=0)


def test_positions_of_any_shape_and_sign():
    found = sinusoid(torch.tensor([[3, -2], [0, 7]]), 4)
    assert found.shape == (2, 2, 4)
    torch.testing.assert_close(found[0, 1, 0], torch.tensor(-math.sin(2)))


def test_the_table_grows_as_far_as_asked_and_keeps_its_type():
    layer = SinusoidalPositions(8)
    assert list(layer.parameters()) == [] and layer.state_dict() == {}
    far = layer(3, start=9_998)
    torch.testing.assert_close(far, sinusoid(torch.arange(9_998, 10_001), 8), atol=0, rtol=0)
    torch.testing.assert_close(layer(5), sinusoid(torch.arange(5), 8), atol=0, rtol=0)
    half = SinusoidalPositions(8).to(torch.bfloat16)
    assert half(3).dtype == half(3000).dtype == torch.bfloat16
    assert layer(0).shape == (0, 8)


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="`d_model` must be even .* but is 7"):
        sinusoid(torch.arange(3), 7)


def test_learned_positions_are_their_rows_and_end_where_they_end():
    layer = LearnedPositions(6, 4)
    assert torch.equal(layer(2, start=3), layer.vectors.weight[3:5])
    assert layer(6).shape == (6, 4)
    layer(4, start=2).sum().backward()
    assert layer.vectors.weight.grad.sum(-1).tolist() == [0, 0, 4, 4, 4, 4]
    with pytest.raises(ValueError, match="reaches position 7, but .* only 6 positions"):
        layer(4, start=3)


def test_learned_positions_that_differ_from_row_to_row():
    learned = LearnedPositions(5, 4)
    places = torch.tensor([[0, 1], [3, 4]])
    assert torch.equal(learned.at(places, 5), learned.vectors.weight[places])
    assert torch.equal(learned.at(places, 9), learned.vectors.weight[places])  # rows have left
    with pytest.raises(ValueError, match="reaches position 6, .* learned only 5"):
        learned.at(places + 1, 6)
    assert learned.at(places[:0], 9).shape == (0, 2, 4)
