"""Language models that read source and target as one text."""

from __future__ import annotations

import pytest
import torch
from random_weights import new_model, randomized

import regard
from regard.data.batches import PairBatch, Sequences
from regard.decoding.steps import start
from regard.errors import CheckpointError, ConfigError
from regard.models import as_encoder_decoder
from regard.tasks.text_to_text import text_to_text_loss

V, BOS, EOS = 20, 1, 2
SOURCES = [[5, 6, 7, EOS], [8, EOS], [9, 10, 11, 12, 13, EOS], [EOS]]
TARGETS = [[BOS, 14, 15, EOS], [BOS, 5, 6, 7, 8, EOS], [BOS, EOS], [BOS, 9, EOS]]
SPECIAL = dict(pad=0, bos=BOS, eos=EOS)
MODELS = {
    "gpt2": dict(heads=2, layers=2, max_length=32, dropout=0.0, **SPECIAL),
    "llama": dict(d_ff=12, heads=4, key_value_heads=2, layers=2, **SPECIAL),
    "lstm-lm": {},
}
MEMORY = dict(d_ff=8, heads=2, layers=2, memory_length=3, bos=BOS, eos=EOS)
WITH_MEMORY = [  # of fewer tokens than the texts have
    ("transformer-xl", MEMORY),
    ("transformer-xl", dict(MEMORY, memory_start="zeros")),
    ("transformer-xl", dict(MEMORY, same_length=True)),
    ("compressive-transformer", dict(MEMORY, compressed_length=1, compression_rate=2)),
    ("sega-transformer-xl", dict(MEMORY, sentence_ends=(7, 12), paragraph_ends=(8,))),
]


def both(name: str, options: dict):
    """A language model with large weights, and the model around it."""
    torch.manual_seed(0)
    inner = randomized(new_model(name, V, d_model=8, **options).eval(), 0.3)
    return inner, as_encoder_decoder(inner).eval()


@pytest.mark.parametrize(("name", "options"), MODELS.items())
def test_the_loss_of_targets_and_its_gradient_are_those_of_the_joined_texts(name, options):
    inner, model = both(name, options)
    batch = PairBatch(Sequences.of(SOURCES, 0), Sequences.of(TARGETS, 0))
    loss, count = text_to_text_loss(model, batch)
    wanted = torch.zeros(())
    for source, target in zip(SOURCES, TARGETS, strict=True):
        text = torch.tensor([[*source, *target]])
        scores = inner.head.logits(inner(text).hidden)[0].log_softmax(-1)
        for at in range(len(source), text.size(1) - 1):
            wanted = wanted - scores[at, text[0, at + 1]]
    assert count == sum(len(target) - 1 for target in TARGETS)
    torch.testing.assert_close(loss, wanted)
    found = torch.autograd.grad(loss, list(model.parameters()))
    expected = torch.autograd.grad(wanted, list(inner.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(("name", "options"), [*MODELS.items(), *WITH_MEMORY])
def test_steps_behind_sources_of_different_lengths_equal_the_joined_text(name, options):
    inner, model = both(name, options)
    state, first = start(model, Sequences.of(SOURCES, 0))
    assert first.tolist() == [[BOS]] * len(SOURCES)
    tokens = torch.tensor([[BOS, 5, 9, 13, 4]] * len(SOURCES))
    found = []
    for token in tokens.split(1, 1):
        scores, state = model.step(token, state)
        found.append(scores.log_softmax(-1))
    for row, source in enumerate(SOURCES):
        text = torch.cat([torch.tensor(source), tokens[row]])[None]
        wanted = inner.head.logits(inner(text).hidden)[0, len(source) :].log_softmax(-1)
        torch.testing.assert_close(torch.cat(found, 1)[row], wanted, atol=1e-5, rtol=1e-4)


def test_a_model_that_does_not_predict_in_order_is_not_taken():
    xlnet = new_model("xlnet", V, d_model=8, d_ff=8, heads=2, layers=1)
    backward = new_model("awd-lstm", V, d_model=8, d_hidden=8, layers=2, backward=True)
    for model in (xlnet, backward, torch.nn.Linear(2, 2)):
        assert as_encoder_decoder(model) is None
    with pytest.raises(ConfigError, match="no token that ends a text"):
        as_encoder_decoder(new_model("gpt2", V, d_model=8, heads=2, layers=1))


def test_the_inner_model_must_be_a_language_model_without_fields_of_the_whole():
    backward = dict(d_model=8, d_hidden=8, layers=2, backward=True)
    own = [(f"base_model.{name}", "gpt2", {**SIZES, name: 5}) for name in ("vocab_size", "eos")]
    for message, decoder, base_model in (
        ("must be a language model, but is 'bert'", "bert", {}),
        ("no model 'gpt3x'", "gpt3x", {}),
        *((f"`{field}` would have no effect", decoder, model) for field, decoder, model in own),
        ("`base_model.backward` would have no effect", "awd-lstm", backward),
    ):
        with pytest.raises(CheckpointError, match=message):
            new_model("decoder-only", V, decoder=decoder, base_model=base_model)


ROWS = [(text, " ".join(text.split()[::-1])) for text in (
    "a b c", "b c", "c a", "a c b", "b a", "c b a", "a b", "b c a", "a", "b", "c", "c c a b",
)]  # fmt: skip
SIZES = dict(d_model=32, heads=4, layers=2, max_length=32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return regard.train(
        task="translation", model={"name": "decoder-only", "base_model": SIZES}, train=ROWS,
        valid=ROWS, max_steps=150, eval_steps=150, learning_rate=1e-2, out=folder / "run",
        schedule={"name": "constant"}, tokenizer={"kind": "words", "vocab_size": 30},
        progress=False,
    )  # fmt: skip


def test_a_decoder_only_model_learns_to_translate_and_is_saved_and_loaded(trained, tmp_path):
    task = trained.model
    assert task.evaluate(ROWS).named[0].value > 80
    texts = [text for text, _ in ROWS]
    regard.save(task, tmp_path / "saved")
    for again in (regard.load(trained.folder), regard.load(tmp_path / "saved")):
        assert again.generate(texts, beams=2) == task.generate(texts, beams=2)
