"""Models that read batches without padding, against the same batches with padding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from random_weights import new_model

import regard
from regard.attention.pruning import heads_masked
from regard.data.batches import IGNORE, Sequences
from regard.models.encoder_with_heads import assembled
from regard.tasks.batching import without_padding
from regard.training.compiling import activation_checkpointing, blocks_of

SIZES = dict(vocab_size=50, d_model=32, d_ff=64, heads=2, layers=3)
ENCODERS = {
    "bert": {},
    "distilbert": {},
    "deberta": dict(d_embedding=32, position_buckets=8),
    "roberta": {},
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
    rates = dict(dropout=dropout, attention_dropout=dropout)
    return new_model(name, **SIZES, **ENCODERS[name], **rates).train()


def passed(model, run, low_precision: bool):
    """The result of a function, and the gradients of a weighted sum of it."""
    model.zero_grad()
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=low_precision):
        out = run()
    draw = torch.Generator().manual_seed(2)
    (out.float() * torch.randn(out.shape, generator=draw)).sum().backward()
    return out.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def assert_close(found, wanted, low_precision) -> None:
    (out, grads), (expected, others) = found, wanted
    bounds = (2e-2, 2e-2) if low_precision else (2e-6, 1e-5)
    torch.testing.assert_close(out, expected, atol=bounds[0], rtol=0)
    assert grads.keys() == others.keys()
    for name, grad in grads.items():
        scale = float(others[name].abs().max()) + 1e-9
        found, wanted = grad / scale, others[name] / scale
        torch.testing.assert_close(found, wanted, atol=bounds[1], rtol=0, msg=name)


BOTH = pytest.mark.parametrize("low_precision", [False, True], ids=["float32", "bfloat16"])


@BOTH
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_computes_the_same_without_padding(name, lengths, low_precision):
    model, given = encoder(name), texts(LENGTHS[lengths])
    keep, unpadded = given.keep[..., None], given.unpadded()
    found = passed(model, lambda: unpadded.pad(model.encode(unpadded)) * keep, low_precision)
    wanted = passed(model, lambda: model.encode(given) * keep, low_precision)
    assert_close(found, wanted, low_precision)


@BOTH
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", ENCODERS)
def test_scores_from_first_tokens_alone_equal_those_from_all_tokens(name, lengths, low_precision):
    """A batch with an empty row, whose first token is one of padding, stays padded."""
    model = assembled(encoder(name), {"classes": 3}).train()
    for head in model.heads.values():
        head.dropout.probability = 0.0
    given = texts(LENGTHS[lengths])

    def whole():
        return model.scores_from("classes", given.first(model.encoder.encode(given)))

    wanted = passed(model, whole, low_precision)
    assert wanted[0].shape == (len(given), 3)
    for batch in (given, *([given.unpadded()] if given.lengths.all() else [])):
        found = passed(model, lambda batch=batch: model.scores("classes", batch), low_precision)
        assert_close(found, wanted, low_precision)


@BOTH
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", ENCODERS)
def test_the_masked_lm_loss_from_masked_tokens_alone_equals_that_from_all(
    name, lengths, low_precision
):
    """Also for rows without padding, because the last layer computes only the masked tokens."""
    model, given = assembled(encoder(name), {"masked_lm": 1}).train(), texts(LENGTHS[lengths])
    masked = (torch.rand(given.ids.shape) < 0.3) & given.keep
    targets = given.ids.masked_fill(~masked, IGNORE)
    assert masked.any()

    def few():
        batch = given.unpadded()
        hidden = model.encoder.encode(batch, batch.layout.subset(masked))[0]
        assert hidden.shape == (int(masked.sum()), 32)
        return model.heads["masked_lm"].loss(hidden, targets[masked])[0]

    def all_tokens():
        hidden = model.encoder.encode(given).flatten(0, 1)
        return model.heads["masked_lm"].loss(hidden, targets.flatten())[0]

    found, wanted = passed(model, few, low_precision), passed(model, all_tokens, low_precision)
    torch.testing.assert_close(found[0], wanted[0], rtol=2e-3 if low_precision else 1e-6, atol=0)
    assert_close((found[0] * 0, found[1]), (wanted[0] * 0, wanted[1]), low_precision)
    model.eval()
    with torch.no_grad():
        batch, states = given.unpadded(), model.encoder.encode(given)[masked]
        some = model.encoder.encode(batch, batch.layout.subset(masked))[0]
        torch.testing.assert_close(some, states, atol=2e-6, rtol=0)


def test_only_batches_with_padding_on_a_cpu_are_unpadded():
    model, given = encoder("bert"), texts(LENGTHS["some"])

    def is_unpadded(batch=given):
        return without_padding(model, batch).layout is not None

    assert is_unpadded()
    assert not is_unpadded(texts(LENGTHS["alike"]).select(torch.zeros(0, dtype=torch.long)))
    assert not is_unpadded(texts([33, 20])) and is_unpadded(texts([33, 17]))
    assert not is_unpadded(texts([33, 0])) and not is_unpadded(given.to("meta"))
    with heads_masked(model, {}):
        assert not is_unpadded()
    with regard.look(model):
        assert not is_unpadded()
    model.unpadded = False
    assert not is_unpadded()


@BOTH
@pytest.mark.parametrize("unpadded", [False, True])
def test_activation_checkpointing_gives_the_same_bits(low_precision, unpadded):
    model, given = encoder("bert", dropout=0.3), texts(LENGTHS["some"])
    batch = given.unpadded() if unpadded else given

    def run():
        return model.encode(batch)

    before = passed(model, run, low_precision)
    grads = {name: grad.clone() for name, grad in before[1].items()}
    with activation_checkpointing(blocks_of(model)):
        after = passed(model, run, low_precision)
    assert torch.equal(before[0], after[0])
    assert all(torch.equal(grad, grads[name]) for name, grad in after[1].items())


# ---- decoders

PAIR = dict(vocab_size=50, d_model=32, d_ff=64, heads=2, encoder_layers=2, decoder_layers=2)


def targets(count: int) -> Sequences:
    lengths = torch.tensor([21, 1, 9, 20, 3, 21, 0])[:count]
    return Sequences(torch.randint(3, 50, (count, 21)), lengths)


@BOTH
@pytest.mark.parametrize("sources", ["some", "one is empty", "alike"])
@pytest.mark.parametrize("name", ["transformer", "transformer-prenorm"])
def test_a_decoder_computes_the_same_without_padding(name, sources, low_precision):
    model = new_model(name, **PAIR, dropout=0.0).train()
    source = texts(LENGTHS[sources])
    target = targets(len(source))

    def run(source, target):
        return target.pad(model(source, target).hidden) * target.keep[..., None]

    found = passed(model, lambda: run(source.unpadded(), target.unpadded()), low_precision)
    wanted = passed(model, lambda: run(source, target), low_precision)
    assert_close(found, wanted, low_precision)
