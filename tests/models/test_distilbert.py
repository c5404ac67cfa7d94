"""DistilBERT: its size, its sinusoids, what it leaves out."""

from __future__ import annotations

import pytest
import torch
from their_encoders import FAMILIES, T, batch, compare, ours_of, transformers

from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.models.distilbert import PUBLISHED, SIZES, DistilBert, DistilBertConfig
from regard.models.encoder_with_heads import HEADS
from regard.text.training import train

TINY = dict(d_model=8, d_ff=12, heads=2, layers=1, max_length=16)


def test_the_released_model_has_these_many_parameters():
    with torch.device("meta"):
        ours = DistilBert(DistilBertConfig(30_522, **SIZES["base"]))
        theirs = transformers.DistilBertModel(transformers.DistilBertConfig())
    for model in (ours, theirs):
        assert sum(parameter.numel() for parameter in model.parameters()) == 66_362_880
    printed, why = PUBLISHED["base"]["parameters"]
    assert "66,362,880" in why and printed == 66e6


def test_sinusoidal_positions_begin_as_theirs_and_are_what_the_file_says():
    options = dict(sinusoidal_pos_embds=True, max_position_embeddings=T)
    config = FAMILIES["distilbert"].config(**options)
    theirs = transformers.DistilBertModel(config).embeddings.position_embeddings.weight
    ours = DistilBert(
        DistilBertConfig(31, **TINY | dict(d_model=12, max_length=T, sinusoidal=True))
    )
    table = ours.positions.vectors.weight
    torch.testing.assert_close(table, theirs)
    assert table.requires_grad == theirs.requires_grad
    trained = FAMILIES["distilbert"].model("ForMaskedLM", **options)
    read = ours_of(trained)
    assert read.config.sinusoidal
    assert not torch.allclose(read.encoder.positions.vectors.weight, theirs)
    compare(trained, read, batch(0))


def test_sinusoids_of_an_odd_width_are_refused():
    odd = FAMILIES["distilbert"].model("Model", dim=15, sinusoidal_pos_embds=True)
    with pytest.raises(ConfigError, match="config.json: `d_model` must be even"):
        ours_of(odd)


def test_it_does_not_look_at_segments():
    torch.manual_seed(0)
    encoder = DistilBert(DistilBertConfig(31, **TINY)).eval()
    texts = batch(5)
    without = Sequences(texts.ids, texts.lengths)
    assert torch.equal(encoder.encode(texts), encoder.encode(without))


def test_it_has_the_heads_that_need_no_pooler():
    encoder = DistilBert(DistilBertConfig(20, **TINY))
    for kind in HEADS.keys() - {"pooler", "next_sentence"}:
        assert encoder.new_head(kind) is not None
    for kind in ("pooler", "next_sentence"):
        with pytest.raises(ConfigError, match=f"DistilBert has no head '{kind}'"):
            encoder.new_head(kind)


def test_its_template_is_berts_without_segments():
    tokenizer = train("words", ["a"], 9, special_tokens=["[UNK]", "[CLS]", "[SEP]"])
    row = DistilBert.template(tokenizer).apply([[5, 6], [7]])
    assert row.ids == [1, 5, 6, 2, 7, 2] and row.segments == [0] * 6
