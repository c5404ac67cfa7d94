"""ALBERT: layers that share their parameters, its parameters, and the order of sentences."""

from __future__ import annotations

import pytest
import torch
from their_encoders import BODY, T, assert_same_outputs, batch, ours_of, randomized, transformers

import regard
from regard.attention.pruning import heads_masked, prune_heads
from regard.checkpoints.formats import from_published, to_published
from regard.errors import ConfigError
from regard.models.bert import Albert, AlbertConfig
from regard.models.encoder_with_heads import EncoderWithHeads


@pytest.mark.parametrize(
    ("layers", "groups", "inner"),
    [(1, 1, 1), (3, 1, 1), (7, 3, 1), (2, 3, 1), (5, 5, 1), (0, 1, 1)],
)
def test_any_groups_of_layers_equal_transformers_and_are_written_back(layers, groups, inner):
    config = transformers.AlbertConfig(**BODY | dict(
        num_hidden_layers=layers, num_hidden_groups=groups, inner_group_num=inner,
        embedding_size=5, max_position_embeddings=T, attn_implementation="eager",
    ))  # fmt: skip
    torch.manual_seed(0)
    model = randomized(transformers.AlbertModel(config)).eval()
    ours = ours_of(model)
    assert ours.config.layers == layers * inner
    if layers:
        assert_same_outputs(model, ours, batch(2))
    published, tensors = to_published(ours)
    for name in ("num_hidden_layers", "num_hidden_groups", "inner_group_num"):
        assert published[name] == getattr(config, name)
    assert tensors.keys() == model.state_dict().keys()
    assert from_published(published, tensors).config == ours.config


def test_layers_that_no_group_divides_raise_an_error():
    with pytest.raises(
        ConfigError, match=r"`layers` must be a multiple of `layers_per_group` \(2\), but is 3"
    ):
        Albert(AlbertConfig(9, d_model=8, d_ff=8, heads=2, layers=3, layers_per_group=2))


def tiny(**options) -> Albert:
    torch.manual_seed(0)
    sizes = dict(d_model=8, d_ff=8, heads=2, d_embedding=4, max_length=T)
    return randomized(Albert(AlbertConfig(31, **sizes | options))).eval()


def test_look_records_every_layer_of_a_shared_one():
    model, texts = tiny(layers=4, groups=2), batch(2)
    with regard.look(model) as attention:
        model.encode(texts)
        model.encode(texts)
        model(texts)
    assert [len(one.attentions) for one in attention.passes] == [4, 4, 4]
    first = [one.weights for one in attention.passes[0].attentions.values()]
    assert all(not torch.allclose(first[0], other) for other in first[1:])
    grid = attention.plot(layer=3)
    assert {panel.layer for panel in grid.panels} == {3}


def test_heads_of_a_shared_layer_are_pruned_in_all_of_its_uses():
    model, texts = tiny(layers=3), batch(2)
    with heads_masked(model, {1: [2]}):
        masked = model.encode(texts)
    prune_heads(model, {1: [2]})
    torch.testing.assert_close(model.encode(texts)[texts.keep], masked[texts.keep])
    whole = from_published(*to_published(EncoderWithHeads(model, {})))
    torch.testing.assert_close(whole.eval().encoder.encode(texts)[texts.keep], masked[texts.keep])
