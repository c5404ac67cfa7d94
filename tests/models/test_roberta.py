"""RoBERTa: where it differs from BERT."""

from __future__ import annotations

import pytest
import torch
from their_encoders import FAMILIES, SAME, T, V, assert_same_outputs, ours_of

from regard.checkpoints.formats import from_published, to_published
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.models.bert import Bert, BertConfig
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.roberta import Roberta, RobertaConfig
from regard.text.training import train

TINY = dict(d_model=8, d_ff=12, heads=2, layers=1, max_length=16)


@pytest.mark.parametrize("pad", [0, 1, 4])
def test_positions_start_after_the_padding_id(pad):
    rows = T + pad + 1
    model = FAMILIES["roberta"].model("Model", pad_token_id=pad, max_position_embeddings=rows)
    ours = ours_of(model)
    assert ours.config.max_length == T and ours.config.pad == pad
    assert to_published(ours)[0]["max_position_embeddings"] == rows
    rows = [[9] * T, [5, pad, 6, pad, pad, 7], [pad, 8], [pad]]  # padding stands inside too
    assert_same_outputs(model, ours, wide(Sequences.of(rows, pad)))
    # Whatever stands behind a row's end, and wherever padding is, a row is read the same.
    texts = Sequences.of([[5, 6, 7], [8] * T], pad)
    other = Sequences(torch.where(texts.keep, texts.ids, 11), texts.lengths)
    found, expected = ours.encoder.encode(other), ours.encoder.encode(texts)
    torch.testing.assert_close(found[texts.keep], expected[texts.keep], **SAME)


def wide(texts: Sequences) -> Sequences:
    assert texts.ids.size(1) == T and int(texts.ids.max()) < V
    return texts


def test_multiple_choice_starts_from_the_pooler_and_classes_do_not():
    encoder = Roberta(RobertaConfig(20, **TINY))
    trained = EncoderWithHeads(
        encoder, {kind: encoder.new_head(kind) for kind in ("pooler", "masked_lm")}
    )
    pooler = trained.heads["pooler"].inner.dense.weight
    choice, classes = (
        trained.with_head(k, 1).heads[k].inner for k in ("multiple_choice", "classes")
    )
    assert torch.equal(choice.dense.weight, pooler)
    assert not torch.equal(classes.dense.weight, pooler)
    with pytest.raises(ConfigError, match="Roberta has no head 'next_sentence'"):
        encoder.new_head("next_sentence")


def test_published_folders_of_roberta_have_its_model_type():
    bert, roberta = Bert(BertConfig(20, **TINY)), Roberta(RobertaConfig(20, **TINY))
    assert to_published(EncoderWithHeads(bert, {}))[0]["model_type"] == "bert"
    config, tensors = to_published(EncoderWithHeads(roberta, {}))
    assert config["model_type"] == "roberta"
    assert type(from_published(config, tensors).encoder) is Roberta


def tokenizer(*special_tokens: str):
    return train("words", ["a b"], 9, special_tokens=special_tokens)


def test_the_template_of_roberta_has_two_separators_between_texts():
    template = Roberta.template(tokenizer("[CLS]", "[UNK]", "[SEP]"))
    assert template.apply([[5, 6]]).ids == [0, 5, 6, 2]
    row = template.apply([[5, 6], [7]])
    assert row.ids == [0, 5, 6, 2, 2, 7, 2] and row.segments == [0] * 7 and row.starts == (1, 5)
    with pytest.raises(ConfigError, match="puts cls and sep tokens around texts, .* no cls t"):
        Roberta.template(tokenizer("[PAD]", "[UNK]", "[SEP]"))
