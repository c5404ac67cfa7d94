"""Masks against grids written by hand: 1 = may attend; rows are queries, columns are keys."""

from __future__ import annotations

import pytest
import torch

from regard.attention.masks import Mask, causal, given, global_, padding, window


def grid(text: str) -> torch.Tensor:
    return torch.tensor([[int(c) for c in line] for line in text.split()]).bool()


CAUSAL = """
    100000
    110000
    111000
    111100
    111110
    111111"""
WINDOW_1 = """
    110000
    111000
    011100
    001110
    000111
    000011"""
WINDOW_2_BEFORE = """
    100000
    110000
    111000
    011100
    001110
    000111"""
GLOBAL_2 = """
    111111
    111111
    110000
    110000
    110000
    110000"""
PADDING_4 = """
    111100
    111100
    111100
    111100
    111100
    111100"""
CAUSAL_AND_PADDING_4 = """
    100000
    110000
    111000
    111100
    111100
    111100"""
WINDOW_OR_GLOBAL = """
    111111
    111100
    111110
    111111
    101111
    100111"""
WINDOW_OR_GLOBAL_OVER_FOUR_WORDS = """
    111100
    111100
    111100
    111100
    101100
    100100"""
PERMUTED = """
    000000
    101110
    100000
    101000
    101100
    111110"""

four, six = torch.tensor([4]), torch.tensor([6])
permuted = given(grid(PERMUTED))

BY_HAND = [
    (causal(), CAUSAL),
    (window(1), WINDOW_1),
    (window(2, 0), WINDOW_2_BEFORE),
    (global_(2), GLOBAL_2),
    (padding(four), PADDING_4),
    (permuted, PERMUTED),
    (causal() & padding(four), CAUSAL_AND_PADDING_4),
    (window(2) | global_(1), WINDOW_OR_GLOBAL),
    ((window(2) | global_(1)) & padding(four), WINDOW_OR_GLOBAL_OVER_FOUR_WORDS),
    (window(5, 0), CAUSAL),
    (window(0) & causal(), "\n".join("0" * i + "1" + "0" * (5 - i) for i in range(6))),
    (causal() & padding(six), CAUSAL),
    ((causal() & padding(six)) & padding(six), CAUSAL),
    (padding(six) & (causal() & padding(six)), CAUSAL),
    (global_(0) | (padding(six) & causal()), CAUSAL),
    (causal() | padding(six), "111111 " * 6),
    (global_(0) | causal(), CAUSAL),
    (global_(0), "000000 " * 6),
]


@pytest.mark.parametrize("mask, text", BY_HAND)
def test_the_grid_of_a_mask_equals_the_one_written_by_hand(mask: Mask, text: str):
    assert torch.equal(mask.grid(6, 6)[0, 0], grid(text))
    assert mask.grid(6, 6).shape == (1, 1, 6, 6) and mask.grid(6, 6).dtype == torch.bool
    allowed = mask.resolve(6, 6)
    found = torch.ones(6, 6).bool() if allowed.grid is None else allowed.grid.expand(1, 1, 6, 6)
    assert torch.equal(found.reshape(6, 6), grid(text))
    assert not allowed.is_causal or torch.equal(grid(text), grid(CAUSAL))


def test_masks_that_allow_all_need_no_grid_and_causal_masks_set_is_causal():
    assert padding(torch.tensor([6, 7])).resolve(6, 6, sequences=2).grid is None
    assert (padding(six) & padding(six)).resolve(6, 6).grid is None
    assert (causal() | padding(six)).resolve(6, 6).grid is None
    assert causal().resolve(6, 6).is_causal
    for both in (causal() & padding(six), padding(six) & causal()):
        assert both.resolve(6, 6).is_causal
    # Not what the kernel calls causal: other shapes, offsets, a mask besides.
    assert not causal().resolve(3, 6).is_causal
    assert not causal().resolve(torch.arange(6), 6).is_causal
    assert not (causal() & padding(four)).resolve(6, 6).is_causal
    assert not (causal() | window(1)).resolve(6, 6).is_causal


def test_padding_masks_each_sequence_by_its_length():
    found = padding(torch.tensor([0, 2, 3])).grid(2, 3, sequences=3, heads=2)
    assert found.shape == (3, 2, 2, 3)
    for row, line in enumerate(("000", "110", "111")):
        assert torch.equal(found[row, 0], grid(f"{line} {line}"))
    assert torch.equal(found[:, 0], found[:, 1])
    none = padding(torch.zeros(0, dtype=torch.long))
    assert none.resolve(2, 3, sequences=0).grid.shape == (0, 1, 1, 3)


def test_causal_masks_follow_the_positions_of_the_queries():
    later = causal().grid(torch.tensor([3, 4]), 6)[0, 0]
    assert torch.equal(later, grid("111100 111110"))
    ragged = causal().grid(torch.tensor([[0, 1], [3, 4], [5, 6]]), 6)
    assert ragged.shape == (3, 1, 2, 6)
    for row, text in enumerate(("100000 110000", "111100 111110", "111111 111111")):
        assert torch.equal(ragged[row, 0], grid(text))
    both = (causal() & padding(torch.tensor([6, 4, 3]))).resolve(
        torch.tensor([[0, 1], [3, 4], [5, 6]]), 6
    )
    for row, text in enumerate(("100000 110000", "111100 111100", "111000 111000")):
        assert torch.equal(both.grid[row, 0], grid(text))
    moved = permuted.grid(torch.tensor([[1], [5]]), 6)
    assert torch.equal(moved[:, 0, 0], grid("101110 111110"))


def test_given_takes_grids_of_2_to_4_dimensions():
    made = torch.Generator().manual_seed(0)
    table = torch.rand(2, 3, 4, 5, generator=made) < 0.5
    asked = dict(sequences=2, heads=3)
    assert torch.equal(given(table).grid(4, 5, **asked), table)
    assert torch.equal(given(table[:, 0]).grid(4, 5, **asked), table[:, :1].expand(2, 3, 4, 5))
    assert torch.equal(given(table[0, 0]).grid(4, 5, **asked), table[:1, :1].expand(2, 3, 4, 5))
    assert torch.equal(given(table[:1]).grid(4, 5, **asked), table[:1].expand(2, 3, 4, 5))
    assert torch.equal(given(table[:, :1]).grid(4, 5, **asked), table[:, :1].expand(2, 3, 4, 5))
    part = given(table).grid(torch.tensor([[3, 1], [0, 2]]), 4, **asked)
    assert torch.equal(part[0], table[0][:, [3, 1], :4])
    assert torch.equal(part[1], table[1][:, [0, 2], :4])


@pytest.mark.parametrize(
    "ask, message",
    [
        (lambda: padding(torch.tensor([[3]])), r"`lengths` must be a vector of integers"),
        (lambda: window(-1), "`before` must be at least 0, but is -1"),
        (lambda: global_(-2), "`first` must be at least 0, but is -2"),
        (lambda: given(torch.zeros(3, 3)), r"`grid` must be boolean .*but is torch.float32.*bias"),
        (lambda: given(torch.ones(3).bool()), r"`grid` must have 2 to 4 dimensions, but has 1"),
        # What would silently take another row's mask
        (
            lambda: padding(torch.tensor([3, 2])).resolve(3, 3),
            r"`sequences` must be 2, one for each of the lengths, but is 1",
        ),
        (
            lambda: given(torch.ones(2, 3, 3).bool()).resolve(3, 3, sequences=4),
            r"`grid` must cover all coordinates \(4, .*, but is \(2, ",
        ),
        (
            lambda: given(torch.ones(3, 3).bool()).resolve(3, 5),
            r"`grid` must cover .* \(1, 1, 3, 5\)",
        ),
        (
            lambda: causal().resolve(torch.zeros(2, 1).long(), 3, sequences=3),
            r"`sequences` must be 2, as `queries` has, but is 3",
        ),
    ],
)
def test_wrong_mask_arguments_raise_errors(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()
