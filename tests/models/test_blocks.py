"""Blocks that pass words end to end in training, against the same padded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import regard
from regard.attention.gates import gated
from regard.data import IGNORE, Sequences
from regard.models import blocks
from regard.models.bert import Bert, BertConfig
from regard.models.distilbert import DistilBert, DistilBertConfig
from regard.models.gpt import GPT
from regard.models.gpt2 import GPT2
from regard.models.headed import assembled
from regard.models.roberta import Roberta, RobertaConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.transformer_prenorm import PreNormTransformer
from regard.training.activation_checkpointing import activation_checkpointing, blocks_of

SIZES = dict(vocab_size=50, d_model=32, d_ff=64, heads=2, layers=3)
ENCODERS = {
    "bert": (Bert, BertConfig(**SIZES)),
    "distilbert": (DistilBert, DistilBertConfig(**SIZES)),
    "roberta": (Roberta, RobertaConfig(**SIZES)),
}
LENGTHS = {
    "some": [5, 20, 1, 33, 7, 33, 12],
    "one is empty": [5, 0, 33, 2],
    "alike": [17, 17, 17],
    "one": [33],
}
WIDTH = 33


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def texts(lengths) -> Sequences:
    ids = torch.randint(3, 50, (len(lengths), WIDTH))
    given = Sequences(ids, torch.tensor(lengths))
    return replace(given, ids=ids.masked_fill(~given.keep, 1))


def encoder(name: str, dropout: float = 0.0):
    kind, config = ENCODERS[name]
    return kind(replace(config, dropout=dropout, attention_dropout=dropout)).train()


def passed(model, run, narrow: bool):
    """What a function gives, and the gradients of a weighted sum of it."""
    model.zero_grad()
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        out = run()
    draw = torch.Generator().manual_seed(2)
    (out.float() * torch.randn(out.shape, generator=draw)).sum().backward()
    return out.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def both(monkeypatch, model, run, narrow):
    """Packed, and padded."""
    calls = []

    def asked(*given, before=blocks.unpadded_layouts, **least):
        calls.append(before(*given, **least))
        return calls[-1]

    monkeypatch.setattr(blocks, "unpadded_layouts", asked)
    found = passed(model, run, narrow)
    monkeypatch.setattr(blocks, "unpadded_layouts", lambda *_, **__: None)
    return found, passed(model, run, narrow), [one for one in calls if one is not None]


def alike(found, wanted, narrow) -> None:
    (out, slopes), (expected, others) = found, wanted
    torch.testing.assert_close(out, expected, atol=2e-2 if narrow else 2e-6, rtol=0)
    assert slopes.keys() == others.keys()
    for name, slope in slopes.items():
        scale = float(others[name].abs().max()) + 1e-9
        torch.testing.assert_close(
            slope / scale, others[name] / scale, atol=2e-2 if narrow else 1e-5, rtol=0, msg=name
        )


@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", ENCODERS)
def test_words_end_to_end_are_read_as_padded_ones(name, lengths, narrow, monkeypatch):
    model, given = encoder(name), texts(LENGTHS[lengths])
    keep = given.keep[..., None]
    found, wanted, packings = both(monkeypatch, model, lambda: model.encode(given) * keep, narrow)
    assert len(packings) == (lengths != "one")
    alike(found, wanted, narrow)


@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", ENCODERS)
def test_first_words_are_read_as_of_padded_rows(name, lengths, narrow, monkeypatch):
    """Of rows without any word, the first place is one of padding: they stay padded."""
    model = assembled(encoder(name), {"classes": 3}).train()
    for head in model.heads.values():
        head.dropout.probability = 0.0
    given = texts(LENGTHS[lengths])
    found, wanted, _ = both(monkeypatch, model, lambda: model.scores("classes", given), narrow)
    assert found[0].shape == (len(given), 3)
    alike(found, wanted, narrow)


@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", ENCODERS)
def test_the_loss_of_masked_words_needs_no_other_states(name, lengths, narrow):
    """Also where rows are full: the last layer computes some places alone."""
    model, given = assembled(encoder(name), {"masked_lm": 1}).train(), texts(LENGTHS[lengths])
    masked = (torch.rand(given.ids.shape) < 0.3) & given.keep
    targets = given.ids.masked_fill(~masked, IGNORE)
    assert masked.any()

    def few():
        hidden = model.encoder.encode_at(given, masked)
        assert hidden.shape == (int(masked.sum()), 32)
        return model.heads["masked_lm"].loss(hidden, targets[masked])[0]

    def all_places():
        hidden = model.encoder.encode(given).flatten(0, 1)
        return model.heads["masked_lm"].loss(hidden, targets.flatten())[0]

    found, wanted = passed(model, few, narrow), passed(model, all_places, narrow)
    torch.testing.assert_close(found[0], wanted[0], rtol=2e-3 if narrow else 1e-6, atol=0)
    alike((found[0] * 0, found[1]), (wanted[0] * 0, wanted[1]), narrow)
    model.eval()
    with torch.no_grad():
        states = model.encoder.encode(given)[masked]
        assert torch.equal(model.encoder.encode_at(given, masked), states)


@pytest.mark.parametrize("training", [True, False])
def test_a_place_of_padding_has_no_state(training):
    model, given = encoder("bert").train(training), texts(LENGTHS["some"])
    with pytest.raises(ValueError, match="where rows have ended"):
        model.encode_at(given, ~given.keep)


def test_only_training_on_whole_rows_is_packed(monkeypatch):
    model, given = encoder("bert"), texts(LENGTHS["some"])

    def packings():
        found = both(monkeypatch, model, lambda: model.encode(given), False)
        monkeypatch.undo()
        return len(found[2])

    assert packings() == 1
    model.eval()
    assert packings() == 0
    model.train()
    with gated(lambda attention, hidden: None):
        assert packings() == 0
    with regard.look(model):
        assert packings() == 0


def test_dropout_drops_as_often(monkeypatch):
    """Other numbers are drawn: the mean over many passes is that of padded rows."""
    model, given = encoder("bert", dropout=0.2), texts([5, 33, 2])
    keep = given.keep[..., None]

    def mean():
        with torch.no_grad():
            many = torch.stack([model.encode(given) * keep for _ in range(400)])
        return many.mean(0), many.std(0)

    found, spread = mean()
    monkeypatch.setattr(blocks, "unpadded_layouts", lambda *_, **__: None)
    wanted, other = mean()
    error = ((found - wanted).abs() / (spread + 1e-3)).max()
    assert error < 6 / 400**0.5
    assert abs(float(spread.mean() / other.mean()) - 1) < 0.03


@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
def test_rows_do_not_depend_on_their_neighbours(narrow, monkeypatch):
    model, given = encoder("bert"), texts(LENGTHS["some"])

    def read(rows):
        return passed(model, lambda: model.encode(rows), narrow)[0]

    together = read(given)
    for row, length in enumerate(given.lengths.tolist()):
        alone = read(given.select(torch.tensor([row])))
        close = dict(atol=2e-2 if narrow else 2e-6, rtol=0)
        torch.testing.assert_close(together[row, :length], alone[0, :length], **close)


@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
def test_what_is_computed_anew_is_the_same_in_every_bit(narrow):
    model, given = encoder("bert", dropout=0.3), texts(LENGTHS["some"])

    def run():
        return model.encode(given)

    before = passed(model, run, narrow)
    slopes = {name: slope.clone() for name, slope in before[1].items()}
    with activation_checkpointing(blocks_of(model)):
        after = passed(model, run, narrow)
    assert torch.equal(before[0], after[0])
    assert all(torch.equal(slope, slopes[name]) for name, slope in after[1].items())


# ---- decoders

PAIR = dict(vocab_size=50, d_model=32, d_ff=64, heads=2, encoder_layers=2, decoder_layers=2)
DECODERS = {"transformer": Transformer, "pre-norm": PreNormTransformer}


def weighed(hidden, lengths):
    """Nothing of padding."""
    return hidden * (torch.arange(hidden.size(1)) < lengths[:, None])[..., None]


@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("sources", ["some", "one is empty", "alike"])
@pytest.mark.parametrize("name", DECODERS)
def test_targets_end_to_end_are_read_as_padded_ones(name, sources, narrow, monkeypatch):
    model = DECODERS[name](TransformerConfig(**PAIR, dropout=0.0)).train()
    source = texts(LENGTHS[sources])
    target = torch.randint(3, 50, (len(source), 21))
    lengths = torch.tensor([21, 1, 9, 20, 3, 21, 0])[: len(source)]

    def run():
        return weighed(model(source, target, lengths).hidden, lengths)

    found, wanted, packings = both(monkeypatch, model, run, narrow)
    assert len(packings) == 2
    alike(found, wanted, narrow)


def test_targets_of_one_length_are_read_beside_sources_of_many(monkeypatch):
    model = Transformer(TransformerConfig(**PAIR, dropout=0.0)).train()
    source, target = texts(LENGTHS["some"]), torch.randint(3, 50, (7, 21))
    found, wanted, packings = both(monkeypatch, model, lambda: model(source, target).hidden, False)
    assert len(packings) == 2
    alike(found, wanted, False)


@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("kind", [GPT, GPT2])
def test_texts_end_to_end_are_read_as_padded_ones(kind, lengths, narrow, monkeypatch):
    none = dict(dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0)
    model = kind(kind.Config(50, d_model=32, heads=2, layers=2, **none)).train()
    given = texts(LENGTHS[lengths])

    def run():
        return weighed(model.encode(given), given.lengths)

    found, wanted, packings = both(monkeypatch, model, run, narrow)
    assert len(packings) == (lengths != "one")
    alike(found, wanted, narrow)
    *_, last = model.eval().layers(given)
    torch.testing.assert_close(model.encode(given), last)


@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
def test_a_decoders_blocks_computed_anew_are_the_same_in_every_bit(narrow):
    model = Transformer(TransformerConfig(**PAIR, attention_dropout=0.2)).train()
    source, lengths = texts([5, 33, 2]), torch.tensor([9, 1, 4])
    target = torch.randint(3, 50, (3, 9))

    def run():
        return model(source, target, lengths).hidden

    before = passed(model, run, narrow)
    slopes = {name: slope.clone() for name, slope in before[1].items()}
    with activation_checkpointing(blocks_of(model)):
        after = passed(model, run, narrow)
    assert torch.equal(before[0], after[0])
    assert all(torch.equal(slope, slopes[name]) for name, slope in after[1].items())
