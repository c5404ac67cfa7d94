"""MPNet: the score bias of its layers, and its parameters."""

from __future__ import annotations

import pytest
import torch
from their_encoders import transformers

import regard
from regard.attention.pruning import heads_masked, prune_heads
from regard.attention.relative_protocol import two_sided_bucket
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.models.check_config import config_of
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.mpnet import Mpnet, MpnetConfig


def test_mpnet_has_the_parameters_of_the_released_model():
    with torch.device("meta"):
        encoder = Mpnet(MpnetConfig(30_527))
        ours = EncoderWithHeads(encoder, {"pooler": encoder.new_head("pooler")})
        theirs = transformers.MPNetModel(transformers.MPNetConfig(max_position_embeddings=514))
    counts = {sum(p.numel() for p in model.parameters()) for model in (ours, theirs)}
    assert len(counts) == 1


def test_buckets_of_all_distances_equal_those_of_transformers():
    distance = torch.arange(-600, 601)
    theirs = transformers.models.mpnet.modeling_mpnet.MPNetEncoder.relative_position_bucket
    assert torch.equal(two_sided_bucket(distance, 32), theirs(-distance, num_buckets=32))


def test_hidden_states_depend_on_the_distance_alone_where_positions_are_equal():
    """Without absolute positions the states of a repeated token differ only at the ends."""
    torch.manual_seed(0)
    model = Mpnet(MpnetConfig(9, d_model=8, d_ff=12, heads=2, layers=1, max_length=64)).eval()
    torch.nn.init.zeros_(model.positions.vectors.weight)
    torch.nn.init.normal_(model.relative.values.weight)
    one, other = Sequences.of([[5, 6, 7]], 1), Sequences.of([[7, 6, 5]], 1)
    found, turned = model.encode(one), model.encode(other).flip(1)
    assert (found - turned).abs().max() > 1e-3  # the bias tells before from behind
    torch.nn.init.zeros_(model.relative.values.weight)
    torch.testing.assert_close(model.encode(one), model.encode(other).flip(1))


def test_a_model_with_another_padding_id_is_saved_and_loaded_in_our_own_format(tmp_path):
    """Their program has the padding id 1; `pad` of a model begun from nothing may be another."""
    rows = [{"text": f"{word} {i}", "label": word} for i in range(8) for word in ("one", "two")]
    sizes = dict(name="mpnet", d_model=8, d_ff=12, heads=2, layers=1, max_length=16)
    run = regard.train(
        task="classification", train=rows, model=sizes, out=tmp_path / "run", progress=False,
        tokenizer=dict(kind="words", vocab_size=20), max_steps=2,
    )  # fmt: skip
    assert run.model.module.config.pad == 0 and len(run.predict(["one 1", "two"])) == 2


def test_a_number_of_segments_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="`model.segments` must be 1"):
        config_of(MpnetConfig, {"vocab_size": 9, "segments": 2}, "r.toml", ConfigError, "model")


def test_pruned_heads_give_what_masked_heads_gave():
    torch.manual_seed(0)
    model = Mpnet(MpnetConfig(vocab_size=20, d_model=12, d_ff=8, heads=3, layers=2)).eval()
    torch.nn.init.normal_(model.relative.values.weight)
    batch = Sequences.full(torch.randint(3, 20, (2, 6)))
    with heads_masked(model, {1: [2], 2: [1, 3]}):
        expected = model.encode(batch)
    prune_heads(model, {1: [2], 2: [1, 3]})
    torch.testing.assert_close(model.encode(batch), expected)
