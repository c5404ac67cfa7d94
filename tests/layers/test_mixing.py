"""Choices of layers against their formulas, and the layers that an encoder leaves out."""

from __future__ import annotations

import pytest
import torch

from regard.errors import ConfigError
from regard.layers.scalar_mix import CHOICES, ScalarMix, choice_of

STATES = torch.randn(7, 2, 3, 4, generator=torch.Generator().manual_seed(0))  # embeddings, 6 layers
FORMULAS = {
    "first": STATES[0],
    "last": STATES[6],
    "second-to-last": STATES[5],
    "sum": STATES[1:].sum(0),
    "sum-last-4": STATES[3:].sum(0),
    "concat-last-4": torch.cat(list(STATES[3:]), -1),
    0: STATES[0],
    4: STATES[4],
    "4": STATES[4],
    -1: STATES[6],
    "-7": STATES[0],
    "mix:0,0,0,0,0,0,0": STATES.mean(0),
    "mix:1,-1,0.5,0,0,2,3": torch.einsum(
        "l,lbtd->btd", torch.tensor([1, -1, 0.5, 0, 0, 2, 3]).softmax(0), STATES
    ),
}


@pytest.mark.parametrize("name", FORMULAS, ids=str)
def test_a_layer_choice_equals_its_formula(name):
    choice = choice_of(name)
    torch.testing.assert_close(choice(iter(STATES)), FORMULAS[name])
    assert choice.width(4) == FORMULAS[name].size(-1)


def test_every_layer_choice_is_tested():
    assert set(CHOICES) < set(FORMULAS)


def test_choosing_a_layer_computes_no_later_ones():
    computed = []

    def states():
        for number, state in enumerate(STATES):
            computed.append(number)
            yield state

    choice_of("first")(states())
    assert computed == [0]
    choice_of(2)(states())
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
    "name, message",
    [
        ("second-last", "Did you mean 'second-to-last'"),
        (7, "no layer 7"),
        ("--1", "There is no choice of layers .--1."),
        (-8, "no layer -8"),
        *((f"mix:1,{odd}", "A mix needs numbers") for odd in ("x", "", "nan", "-inf", "1e40")),
        ("mix:1,2", "A mix of 2 scalars does not fit this model, which has its embeddings and 6"),
    ],
)
def test_an_invalid_layer_choice_raises_an_error(name, message):
    with pytest.raises(ConfigError, match=message):
        choice_of(name)(iter(STATES))


@pytest.mark.parametrize("name", ["sum-last-4", "concat-last-4"])
def test_a_choice_of_more_layers_than_there_are_raises_an_error(name):
    with pytest.raises(ConfigError, match="has 3 layers: it has no last 4"):
        choice_of(name)(iter(STATES[:4]))
