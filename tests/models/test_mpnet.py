"""MPNet: the score bias of its layers, and its parameters."""

from __future__ import annotations

import torch
from their_encoders import transformers

from regard.attention.relative import two_sided_bucket
from regard.data.batches import Sequences
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.roberta import Mpnet, MpnetConfig


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
