"""What config.json and the tensors of a DeBERTa mean, against `transformers`."""

from __future__ import annotations

import json

import pytest
import torch
from their_encoders import FAMILIES, assert_same_outputs, batch, ours_of, transformers, weights

from regard.checkpoints.formats import from_published, to_published
from regard.errors import ConfigError

FAMILY = FAMILIES["deberta-v2"]


@torch.no_grad()
@pytest.mark.parametrize("named", [{}, {"architectures": None}], ids=str)
def test_the_head_of_the_authors_files_is_read_and_written_in_the_other_form(named):
    theirs = FAMILY.model("ForMaskedLM", legacy=False, embedding_size=12)
    config = json.loads(theirs.config.to_json_string(use_diff=False))
    config |= {"architectures": ["DebertaV2ForMaskedLM"], "tie_word_embeddings": False} | named
    ours = from_published(config, weights(theirs)).eval()
    assert_same_outputs(theirs, ours, batch(2))
    written, tensors = to_published(ours)
    read = transformers.DebertaV2Config.from_dict(written | {"attn_implementation": "eager"})
    other = transformers.DebertaV2ForMaskedLM(read).eval()
    missing, unexpected = other.load_state_dict(tensors, strict=False)
    assert not unexpected and all("decoder" in name for name in missing)  # tied
    other.tie_weights()
    assert_same_outputs(other, ours, batch(2))


@torch.no_grad()
@pytest.mark.parametrize(
    "fields",
    [
        dict(pos_att_type="C2P | p2c"), dict(pos_att_type=["p2c"]), dict(pos_att_type=None),
        dict(pos_att_type=["c2p", "c2p"]), dict(relative_attention=False),
        dict(position_buckets=-1, max_relative_positions=3), dict(max_relative_positions=-1),
        dict(norm_rel_ebd="none", share_att_key=False), dict(conv_kernel_size=-1, conv_act="gelu"),
        dict(type_vocab_size=0, position_biased_input=False, attention_head_size=4),
    ],
    ids=str,
)  # fmt: skip
def test_fields_mean_what_they_mean_in_transformers(fields):
    theirs = FAMILY.model("Model", **fields)
    assert_same_outputs(theirs, ours_of(theirs), batch(2))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (dict(position_buckets=1), "position_buckets"),
        (dict(position_buckets=20), "position_buckets"),  # of 10 distances
        (dict(pos_att_type="c2p|p2p"), "pos_att_type.1"),
        (dict(pos_att_type=3), "pos_att_type"),
        (dict(conv_kernel_size=4), "conv_kernel_size"),
        (dict(conv_groups=2), "conv_groups"),
        (dict(conv_act="softmax"), "conv_act"),
        (dict(attention_head_size=5), "attention_head_size"),
        (dict(pooler_hidden_size=13), "pooler_hidden_size"),
        (dict(norm_rel_ebd="batch_norm"), "norm_rel_ebd"),
        (dict(relative_attention=1), "relative_attention"),
        (dict(embedding_size=0), "embedding_size"),
        (dict(position_buckets=2**40), "position_buckets"),
        (dict(num_attention_heads=5), "num_attention_heads"),
    ],
    ids=str,
)
def test_what_no_model_computes_is_refused_by_name(fields, name):
    with pytest.raises(ConfigError, match=f"config.json: .*`{name}`"):
        ours_of(FAMILY.model("Model"), **fields)
