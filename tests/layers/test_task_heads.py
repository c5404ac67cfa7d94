"""Heads and poolings: where they read, and which layers they choose."""

from __future__ import annotations

import pytest
import torch

from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.layers.pooling import ScalarMix, choice_of
from regard.layers.task_heads import (
    every_token,
    first_token,
    last_token,
    mean_of_tokens,
)

D = 6


def texts() -> Sequences:
    return Sequences(torch.arange(12).view(3, 4), torch.tensor([4, 1, 3]))


def hidden() -> torch.Tensor:
    return torch.randn(3, 4, D, generator=torch.Generator().manual_seed(0))


def test_poolings_read_tokens_and_no_padding():
    states, rows = hidden(), texts()
    assert every_token(states, rows) is states
    assert torch.equal(first_token(states, rows), states[:, 0])
    ends = [states[0, 3], states[1, 0], states[2, 2]]
    assert torch.equal(last_token(states, rows), torch.stack(ends))
    means = [states[0].mean(0), states[1, 0], states[2, :3].mean(0)]
    torch.testing.assert_close(mean_of_tokens(states, rows), torch.stack(means))
    for pooling in (first_token, last_token, mean_of_tokens):  # whatever stands in the padding
        changed = states.masked_fill(~rows.keep[..., None], 99.0)
        torch.testing.assert_close(pooling(changed, rows), pooling(states, rows))


STATES = torch.randn(7, 2, 3, 4, generator=torch.Generator().manual_seed(0))  # embeddings, 6 layers


def test_choosing_a_layer_computes_no_later_ones():
    computed = []

    def states():
        for number, state in enumerate(STATES):
            computed.append(number)
            yield state

    choice_of(0)(states())
    assert computed == [0]
    choice_of([2, 1], "sum")(states())
    assert computed == [0, 0, 1, 2]


@pytest.mark.parametrize(
    "options, message",
    [
        ((7,), "no layer 7, but 6 layers"),
        (([1, 9], "sum"), "no layer 9, but 6 layers"),
        (([1, 2], [1.0]), "`combine` must have a weight for each of the 2 layers"),
        ((ScalarMix.of([1.0, 2.0]),), "A mix of 2 scalars does not fit this model"),
    ],
    ids=str,
)
def test_an_invalid_layer_choice_raises_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        choice_of(*options)(iter(STATES))


def test_layers_of_different_widths_are_concatenated_and_not_added_up():
    states = [torch.ones(1, 2, 3), torch.ones(1, 2, 5)]
    assert choice_of([0, 1])(iter(states)).shape == (1, 2, 8)
    with pytest.raises(ConfigError, match='they are 3 and 5 wide. Use combine="concat"'):
        choice_of([0, 1], "sum")(iter(states))
