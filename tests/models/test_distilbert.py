"""DistilBERT: its size, its sinusoidal positions, and the parts of BERT that it does not have."""

from __future__ import annotations

import pytest
import torch
from their_encoders import FAMILIES, T, assert_same_outputs, batch, ours_of, transformers

from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.models.bert import DistilBert, DistilBertConfig
from regard.models.encoder_with_heads import HEADS
from regard.text.training import train

TINY = dict(d_model=8, d_ff=12, heads=2, layers=1, max_length=16)


def test_sinusoidal_positions_start_as_in_transformers_and_are_read_from_files():
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
    assert_same_outputs(trained, read, batch(0))


def test_distilbert_ignores_segments():
    torch.manual_seed(0)
    encoder = DistilBert(DistilBertConfig(31, **TINY)).eval()
    texts = batch(5)
    without = Sequences(texts.ids, texts.lengths)
    assert torch.equal(encoder.encode(texts), encoder.encode(without))


def test_distilbert_has_only_heads_without_pooler():
    encoder = DistilBert(DistilBertConfig(20, **TINY))
    missing = {"pooler", "next_sentence", "replaced", "sentence_order", "span_search"}
    for kind in HEADS.keys() - missing - {"chart", "crf"}:  # which `new_head` makes for any encoder
        assert encoder.new_head(kind) is not None
    for kind in sorted(missing):
        with pytest.raises(ConfigError, match=f"DistilBert has no head '{kind}'"):
            encoder.new_head(kind)


def test_the_template_of_distilbert_is_that_of_bert_without_segments():
    tokenizer = train("words", ["a"], 9, special_tokens=["[UNK]", "[CLS]", "[SEP]"])
    row = DistilBert.template(tokenizer).apply([[5, 6], [7]])
    assert row.ids == [1, 5, 6, 2, 7, 2] and row.segments == [0] * 6
