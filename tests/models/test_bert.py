"""BERT: its sizes, where it drops, its heads; that it computes what `transformers` does is tested
with its published layout."""

from __future__ import annotations

import pytest
import torch
from their_encoders import (
    CASES,
    FAMILIES,
    SAME,
    answers,
    ask,
    batch,
    heads_of,
    ours_of,
)

import regard.attention.attend
import regard.layers.dropout
import regard.ops
from regard.models.bert import Bert, BertConfig
from regard.models.encoder_with_heads import EncoderWithHeads

TINY = dict(d_model=8, d_ff=12, heads=2, layers=1, max_length=16)


@pytest.mark.parametrize(("family", "ending"), CASES)
def test_dropout_is_at_the_same_positions_as_in_transformers(family, ending, monkeypatch):
    """Instead of dropping, both multiply by a number that tells the probability."""

    def theirs(x, p=0.5, training=True, inplace=False):
        return x * (1 + p) if training else x

    def ours(x, drop):
        return x * (1 + round(drop.probability, 3))

    monkeypatch.setattr(torch.nn.functional, "dropout", theirs)
    monkeypatch.setattr(regard.ops.dropout, "definition", ours)
    names = {
        "distilbert": ("dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout"),
    }.get(family, ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"))
    rates = {name: 0.1 * (n + 1) for n, name in enumerate(names)}
    with regard.ops.reference():
        for options in (rates, {k: v for k, v in rates.items() if k != "classifier_dropout"}):
            model = FAMILIES[family].model(ending, **options).train()
            ours, texts = ours_of(model).train(), batch(FAMILIES[family].segments)
            output = ask(model, texts, pad=ours.config.pad)
            keep = texts.keep
            found, expected = ours.encoder.encode(texts), output.hidden_states[-1]
            torch.testing.assert_close(found[keep], expected[keep], **SAME)
            for kind in heads_of(family, ending):
                if kind == "pooler" and "pooler_output" not in output:
                    continue  # they have one that nothing reads
                found, expected = ours.scores(kind, texts), answers(output, kind)
                if found.dim() == 3:
                    found, expected = found[keep], expected[keep]
                torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_new_weights_have_the_initial_range_of_the_config(tied):
    torch.manual_seed(0)
    config = BertConfig(500, d_model=64, d_ff=128, heads=2, layers=2, tied=tied, init_range=0.05)
    encoder = Bert(config)
    head = encoder.new_head("masked_lm")
    assert (head.softmax.weight is encoder.embedding.weight) == tied
    for name, parameter in [*encoder.named_parameters(), *head.named_parameters()]:
        if parameter.dim() == 2:
            assert parameter.std().item() == pytest.approx(0.05, rel=0.1), name
        else:
            assert bool((parameter == ("norm" in name and "weight" in name)).all()), name


def test_new_pooled_heads_start_from_the_trained_pooler():
    torch.manual_seed(0)
    encoder = Bert(BertConfig(20, **TINY))
    trained = EncoderWithHeads(
        encoder, {kind: encoder.new_head(kind) for kind in ("masked_lm", "next_sentence")}
    )
    pooler = trained.heads["next_sentence"].inner.dense
    for kind in ("pooler", "classes", "multiple_choice"):
        made = trained.with_head(kind, 1).heads[kind].inner.dense
        assert made is not pooler and torch.equal(made.weight, pooler.weight)
    assert (
        trained.with_head("next_sentence", 2).heads["next_sentence"]
        is trained.heads["next_sentence"]
    )
    assert trained.with_head("tags", 4).heads["tags"].inner is None
