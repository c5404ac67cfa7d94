"""Choices of layers against their formulas, and the layers that an encoder leaves out."""

from __future__ import annotations

import pytest
import torch

from regard.errors import ConfigError
from regard.layers.pooling import ScalarMix, choice_of

STATES = torch.randn(7, 2, 3, 4, generator=torch.Generator().manual_seed(0))  # embeddings, 6 layers
FORMULAS = {
    (0, "concat"): STATES[0],
    (4, "sum"): STATES[4],
    (-1, "concat"): STATES[6],
    ((-7,), "concat"): STATES[0],
    ((-4, -3, -2, -1), "concat"): torch.cat(list(STATES[3:]), -1),
    ((-4, -3, -2, -1), "sum"): STATES[3:].sum(0),
    (tuple(range(7)), "mean"): STATES.mean(0),
    ((5, -1, 0, 5), "concat"): torch.cat([STATES[5], STATES[6], STATES[0], STATES[5]], -1),
    ((0, -2, 3), (1.0, -1.0, 0.5)): STATES[0] - STATES[5] + 0.5 * STATES[3],
}


@pytest.mark.parametrize(("layers", "combine"), FORMULAS, ids=str)
def test_a_layer_choice_equals_its_formula(layers, combine):
    choice = choice_of(layers, combine)
    torch.testing.assert_close(choice(iter(STATES)), FORMULAS[layers, combine])
    assert choice.width(4) == FORMULAS[layers, combine].size(-1)


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


def test_a_scalar_mix_learns_its_weights_and_gamma():
    mix = ScalarMix(6)
    target = 3 * STATES[2]
    optimizer = torch.optim.Adam(mix.parameters(), 0.1)
    for _ in range(200):
        optimizer.zero_grad()
        (mix(iter(STATES)) - target).square().mean().backward()
        optimizer.step()
    assert mix.scalars.softmax(0).argmax() == 2 and abs(mix.gamma.item() - 3) < 0.1
    known = ScalarMix.of(mix.scalars.tolist(), mix.gamma.item())
    torch.testing.assert_close(known(iter(STATES)), mix(iter(STATES)))
    assert not any(parameter.requires_grad for parameter in known.parameters())


@pytest.mark.parametrize(
    "options, message",
    [
        ((7,), "no layer 7, but 6 layers"),
        ((-8,), "no layer -8, but 6 layers"),
        (([1, 9], "sum"), "no layer 9, but 6 layers"),
        (("last",), "`layers` must be the number of a layer or several"),
        (([1, True],), "`layers` must be the number of a layer or several"),
        (([],), "`layers` must be the number of a layer or several"),
        (([1, 2], "max"), "`combine` must be concat, sum or mean, or a weight for each layer"),
        (([1, 2], [1.0]), "`combine` must have a finite weight for each of the 2 layers"),
        (([1, 2], [1.0, float("nan")]), "`combine` must have a finite weight"),
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
