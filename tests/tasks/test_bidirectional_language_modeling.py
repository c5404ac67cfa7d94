"""ELMo trained from text, evaluated, resumed, and used by other tasks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from recipe_files import written

import regard
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.experiments.runs import read_recipe, train
from regard.models.elmo import Elmo, ElmoConfig
from regard.tasks.bidirectional_language_modeling import BidirectionalLanguageModel
from regard.text import train as train_tokenizer

LINES = ["the cat sat on the mat .", "a dog ran in the park .", "the dog saw a cat ."]
RECIPE = dict(
    task="bidirectional-language-modeling", seed=1,
    data=dict(train="train.txt", valid="valid.txt", batch_size=4, sequence_length=5),
    tokenizer=dict(kind="words", vocab_size=16),
    model=dict(
        name="elmo", d_model=16, d_cell=12, filters=[[1, 4], [3, 8]], dropout=0.1,
        negative_samples=8,
    ),
    training=dict(
        max_steps=12,
        checkpoints=dict(save_steps=6),
        schedule=dict(name="constant"),
        optimizer=dict(name="adam", learning_rate=0.01),
    ),
)  # fmt: skip


@pytest.fixture
def recipe(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text("\n".join(LINES * 20) + "\n\n")
    (tmp_path / "valid.txt").write_text("the cat ran .\nthe zebra sat on a mat .\n")
    return written("recipe.toml", RECIPE)


def tiny(**options) -> BidirectionalLanguageModel:
    tokenizer = train_tokenizer("words", LINES, 16)
    torch.manual_seed(2)
    sizes = dict(d_model=8, d_cell=6, filters=((1, 3), (2, 4)), d_character=4)
    ids = {role: getattr(tokenizer, f"{role}_id") for role in ("pad", "bos", "eos")}
    config = ElmoConfig(tokenizer.vocab_size, **{**sizes, **options}, **ids)
    return BidirectionalLanguageModel(Elmo(config).eval(), tokenizer)


def naive_nats(task, sentence: str) -> list[list[float]]:
    """-log p of the words of a sentence in both directions, each by itself, in float64."""
    model, tokenizer = task.module.double(), task.tokenizer
    ids = [tokenizer.bos_id, *tokenizer.encode(sentence).ids, tokenizer.eos_id]
    found = []
    for order, layers in ((ids, model.ahead), (ids[::-1], model.back)):
        found.append([])
        for n in range(1, len(order)):
            batch = model.complete(Sequences.full(torch.tensor([order[:n]])), tokenizer)
            x = model.words(batch)
            start = model.empty(1).forward
            *_, last = model._read(layers, x, start, batch.lengths)
            shares = model.head.logits(last.hidden[0, -1]).log_softmax(-1)
            found[-1].append(-float(shares[tokenizer.closed(order[n])]))
    model.float()
    return found


@torch.no_grad()
def test_perplexities_from_zeros_equal_every_word_predicted_alone():
    task = tiny()
    lines = [*LINES, "", "a zebra saw the yak"]
    forward, backward = task.evaluate(lines, state="zeros").named
    wanted = [naive_nats(task, line) for line in lines if line]
    count = sum(len(line.split()) + 1 for line in lines if line)
    assert forward.count == backward.count == count
    assert math.isclose(forward.nats, sum(sum(one) for one, _ in wanted), rel_tol=1e-5)
    assert math.isclose(backward.nats, sum(sum(one) for _, one in wanted), rel_tol=1e-5)
    assert forward.name == "forward perplexity" and backward.name == "backward perplexity"
    assert "state:zeros|direction:forward" in forward.signature and forward.unknown == 2
    alone = [task.evaluate([line], state="zeros").named[0].nats for line in lines if line]
    assert math.isclose(sum(alone), forward.nats, rel_tol=1e-6)


def test_the_carried_state_is_the_default_and_depends_on_the_order_of_sentences():
    task = tiny()
    one, other = (task.evaluate(lines).named[0].nats for lines in (LINES, LINES[::-1]))
    assert one != other
    first = task.evaluate(LINES[:1]).named[0].nats
    assert math.isclose(first, task.evaluate(LINES[:1], state="zeros").named[0].nats, rel_tol=1e-6)


def test_its_encoder_is_fine_tuned_and_its_features_are_read_by_other_tasks(recipe, tmp_path):
    train(recipe, max_steps=4, progress=False, out=tmp_path / "lm")
    rows = ["the cat sat\tcat", "a dog ran\tdog", "the zebra cat\tcat", "my dog\tdog"] * 6
    (tmp_path / "rows.tsv").write_text("\n".join(rows) + "\n")
    start, rows = str(tmp_path / "lm"), str(tmp_path / "rows.tsv")
    training = dict(max_steps=40, validation=dict(eval_steps=40), schedule=dict(name="constant"))
    training["optimizer"] = dict(name="adam", learning_rate=1e-2)
    model, data = dict(path=start), dict(train=rows, valid=rows)
    tune = dict(task="classification", data=data, model=model, training=training)
    written("tune.toml", tune)
    tuned = train(tmp_path / "tune.toml", progress=False, out=tmp_path / "tuned")
    task = regard.load(tmp_path / "tuned")
    assert task.predict(["the cat sat", "my dog"]) == ["cat", "dog"]
    start = regard.load(tmp_path / "lm").module
    assert not torch.equal(tuned.model.module.encoder.mix.scalars, start.mix.scalars)
    assert not torch.equal(tuned.model.module.encoder.embedding.weight, start.embedding.weight)
    features = dict(combine="mix", d_model=16, lstm_layers=1, d_words=6)
    written("features.toml", tune, dict(model=dict(features=features)))
    frozen = train(tmp_path / "features.toml", progress=False, out=tmp_path / "frozen")
    assert torch.equal(frozen.model.module.encoder.encoder.embedding.weight, start.embedding.weight)
    assert not torch.equal(frozen.model.module.encoder.choice.scalars, start.mix.scalars)
    task = regard.load(tmp_path / "frozen")
    assert task.predict(["the cat sat", "my dog"]) == ["cat", "dog"]
    assert task.predict("unseen dog") == task.predict(["unseen dog"])[0]


def test_a_published_model_without_a_softmax_is_not_trained_further(recipe, tmp_path):
    task = tiny(output="none")
    regard.save(task, tmp_path / "none")
    written("more.toml", {**RECIPE, "tokenizer": None, "model": dict(path="none")})
    assert read_recipe(tmp_path / "more.toml").model.path
    with pytest.raises(ConfigError, match="no output over words"):
        train(tmp_path / "more.toml", progress=False)
