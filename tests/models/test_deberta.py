"""DeBERTa's disentangled attention, against `transformers`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from their_encoders import FAMILIES, SAME, V, batch, ours_of, transformers

import regard
from regard.attention.relative import log_bucket
from regard.data.batches import Sequences
from regard.models.conversions import prepare
from regard.models.deberta import Deberta, DebertaConfig
from regard.models.wrappers import encoder

bucket_there = transformers.models.deberta_v2.modeling_deberta_v2.make_log_bucket_position
FAMILY = FAMILIES["deberta-v2"]
SEPARATE = dict(share_att_key=False, pos_att_type="p2c", norm_rel_ebd="none", conv_kernel_size=0)


@pytest.mark.parametrize(("buckets", "limit"), [(256, 512), (32, 128), (9, 40), (2, 20), (3, 7)])
def test_buckets_are_those_of_transformers(buckets, limit):
    distances = torch.arange(-1200, 1201)
    expected = bucket_there(distances, buckets, limit).long()
    assert torch.equal(log_bucket(distances, buckets, limit), expected)


@pytest.mark.parametrize("options", [{}, SEPARATE, dict(position_buckets=-1)], ids=str)
def test_gradients_and_recorded_attention_equal_transformers(options):
    theirs = FAMILY.model("Model", **options)
    ours, texts = ours_of(theirs), batch(2)
    output = theirs(
        texts.ids,
        attention_mask=texts.keep.long(),
        token_type_ids=texts.segments,
        output_attentions=True,
    )
    found, expected = ours.encoder.encode(texts)[texts.keep], output.last_hidden_state[texts.keep]
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    gradients = {n: p.grad for n, p in ours.encoder.named_parameters()}
    there = dict(theirs.named_parameters())
    attention = "encoder.layer.1.attention.self"
    packed = [there[f"{attention}.{part}_proj.weight"].grad for part in ("query", "key", "value")]
    for name, gradient in {
        "embedding.weight": there["embeddings.word_embeddings.weight"].grad,
        "relations.vectors.weight": there["encoder.rel_embeddings.weight"].grad,
        "blocks.1.attention.query_key_value.weight": torch.cat(packed),
    }.items():
        assert gradient.std() > 0
        torch.testing.assert_close(gradients[name], gradient, atol=1e-4, rtol=1e-4)
    assert not [name for name, gradient in gradients.items() if gradient is None]
    with regard.look(ours) as attention, torch.no_grad():
        ours.encoder.encode(texts)
    keep = texts.keep[:, None, :, None].expand_as(output.attentions[0])
    for site, expected in zip(
        attention.passes[-1].attentions.values(), output.attentions, strict=True
    ):
        torch.testing.assert_close(torch.cat(site.parts)[keep], expected[keep], **SAME)


@torch.no_grad()
@pytest.mark.parametrize("buckets", [0, 16, 256])
def test_long_texts_equal_transformers_beyond_the_trained_length(buckets):
    theirs = FAMILY.model(
        "Model", position_biased_input=False, position_buckets=buckets, max_relative_positions=300
    )
    ids = torch.randint(1, V, (1, 700), generator=torch.Generator().manual_seed(2))
    found = ours_of(theirs).encoder.encode(Sequences.full(ids))
    torch.testing.assert_close(found, theirs(ids).last_hidden_state, **SAME)


@torch.no_grad()
@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_a_quantized_model_computes_nearly_the_same(dtype):
    torch.manual_seed(0)
    config = DebertaConfig(V, d_model=64, d_embedding=64, d_ff=96, heads=4, layers=2)
    config = replace(config, conv_kernel_size=3, share_att_key=False, init_range=0.1)
    model, texts = Deberta(config).eval(), replace(batch(2), segments=None)
    expected = model.encode(texts)[texts.keep]
    found = encoder(prepare(model, dtype)).encode(texts)[texts.keep]
    assert 0 < (found - expected).pow(2).mean().sqrt() / expected.std() < 0.05
