"""What a position depends on is what the masks and the memory let through, layer by layer."""

from __future__ import annotations

import pytest
import torch

from regard.errors import ConfigError
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.models.transformer_xl import TransformerXL, TransformerXLConfig
from regard.visual.reachable_positions import reachable_positions

LENGTH = 13


def reached(layers, segment, memory):
    """By recursion over the layers: position t reads the memory before its segment, and this."""
    sets = [{t} for t in range(LENGTH)]
    for _ in range(layers):
        first = [t // segment * segment for t in range(LENGTH)]
        sets = [
            set().union(*(sets[u] for u in range(max(0, first[t] - memory), t + 1)))
            for t in range(LENGTH)
        ]
    return torch.tensor([[s in sets[t] for s in range(LENGTH)] for t in range(LENGTH)])


def grid(picture):
    return torch.tensor(picture.weights) > 0


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize(("segment", "memory"), [(3, 2), (4, 4), (2, 5), (13, 1)])
def test_a_memory_reaches_further_with_every_layer(layers, segment, memory):
    torch.manual_seed(1)
    sizes = dict(d_model=8, d_ff=8, heads=2, layers=layers, init_range=0.5)
    model = TransformerXL(TransformerXLConfig(20, memory_length=memory, **sizes))
    found = reachable_positions(model, LENGTH, segment, carried=True)
    assert torch.equal(grid(found), reached(layers, segment, memory))
    alone = reachable_positions(model, LENGTH, segment)
    assert torch.equal(grid(alone), reached(layers, segment, 0))


@pytest.mark.parametrize("segment", [3, 13])
def test_a_model_without_memory_reaches_the_start_of_its_segment(segment):
    torch.manual_seed(2)
    model = GPT2(GPT2Config(20, d_model=8, heads=2, layers=2, max_length=16))
    found = reachable_positions(model, LENGTH, segment, title="vanilla")
    assert torch.equal(grid(found), reached(2, segment, 0))
    assert found.title == "vanilla" and max(map(max, found.weights)) == 1


def test_a_recurrent_model_reaches_all_earlier_positions():
    torch.manual_seed(3)
    model = RecurrentLanguageModel(RecurrentConfig(20, d_model=8, layers=1))
    found = reachable_positions(model, LENGTH, 4, carried=True)
    assert torch.equal(grid(found), torch.ones(LENGTH, LENGTH).tril().bool())


def test_no_positions_are_an_error():
    model = RecurrentLanguageModel(RecurrentConfig(20, d_model=8, layers=1))
    with pytest.raises(ConfigError, match="at least 1"):
        reachable_positions(model, 0, 3)
    with pytest.raises(ConfigError, match="at least 1"):
        reachable_positions(model, 3, 0)
