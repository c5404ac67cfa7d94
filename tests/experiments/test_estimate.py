"""Estimates of a training against formulas written by hand and against real passes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.data import PairBatch, Sequences, StreamBatch
from regard.experiments import estimate as estimating
from regard.experiments.estimate import activations_of, estimate, memory_of, steps_of
from regard.models import model_class
from regard.tasks import task_class
from regard.training import OptimizerOptions, TrainingOptions
from regard.training.flops import count, stored_by

RECIPES = Path(__file__).parents[2] / "recipes"


def transformer_flops(rows, s, t, d, ff, layers, vocabulary):
    """2 a multiply-add, times 3 for both ways; s source and t target positions in each row."""
    encoder = s * (4 * d * d + 2 * d * ff) + 2 * s * s * d
    decoder = t * (4 * d * d + 2 * d * ff) + 2 * t * t * d
    cross = 2 * t * d * d + 2 * s * d * d + 2 * t * s * d
    return 6 * rows * (layers * (encoder + decoder + cross) + t * d * vocabulary)


@pytest.mark.parametrize(
    ("name", "parameters", "d", "steps", "printed"),
    [
        ("base", 63_082_496, 512, 100_000, (65e6, 3.3e18)),
        ("big", 214_245_376, 1024, 300_000, (213e6, 2.3e19)),
    ],
)
def test_the_estimates_of_the_papers_transformers_equal_the_formulas(
    name, parameters, d, steps, printed, monkeypatch
):
    monkeypatch.delenv("WMT14", raising=False)
    found = estimate(RECIPES / f"wmt14-transformer-{name}.toml", measure=False)
    totals = found.totals()
    assert totals["parameters"] == sum(found.parameters.values()) == parameters
    assert found.parameters["embedding"] == 37_000 * d and found.parameters["head (tied)"] == 0
    rows = 25_000 // 30
    assert (found.items, found.count) == ("tokens", rows * 29)
    assert found.flops == transformer_flops(rows, 30, 29, d, 4 * d, 6, 37_000)
    assert totals["flops"] == found.flops * steps
    assert tuple(one.value for one in found.published) == printed
    assert found.memory["weights"] == 4 * parameters
    assert found.memory["adam's tables"] == 8 * parameters
    text = found.text()
    assert f"{parameters:,}" in text and "Vaswani et al. 2017, table 3" in text
    assert "sentences of 30 tokens are assumed" in found.batch and "$WMT14" in found.batch


def pairs(rows, s, t):
    def side(words):
        return Sequences(torch.full((rows, words), 5), torch.full((rows,), words))

    return PairBatch(side(s), side(t))


def on_meta(task, name, vocabulary, **options):
    model = model_class(name)
    with torch.device("meta"):
        return task_class(task)(model(model.Config(vocab_size=vocabulary, **options)), None)


def test_the_flops_of_an_lstm_with_attention_equal_the_formula():
    rows, s, t, d, vocabulary, layers = 4, 7, 5, 8, 50, 2
    task = on_meta("translation", "lstm-seq2seq", vocabulary, d_model=d, layers=layers)
    encoder = layers * s * 2 * (d * 2 * d + d // 2 * 2 * d)  # two ways, half as wide, four gates
    bridge, keys = layers * d * 2 * d, s * d * d
    decoder = t * (d * 4 * d + layers * 2 * d * 4 * d + 2 * d * d + 2 * s * d)
    wanted = 6 * rows * (encoder + bridge + keys + decoder + t * d * vocabulary)
    assert count(task, pairs(rows, s, t + 1))[:2] == (rows * t, wanted)


def test_the_flops_of_a_recurrent_language_model_equal_the_formula():
    rows, t, d, vocabulary = 3, 6, 8, 40
    task = on_meta("language-modeling", "lstm-lm", vocabulary, d_model=d, layers=2)
    tokens = torch.full((rows, t), 5)
    found = count(task, StreamBatch(tokens, tokens, fresh=True))
    assert found[:2] == (rows * t, 6 * rows * t * (2 * 8 * d * d + d * vocabulary))


@pytest.mark.parametrize("name", ["transformer", "lstm-seq2seq"])
def test_estimated_activations_are_those_that_a_whole_batch_stores(name):
    model = model_class(name)
    torch.manual_seed(1)
    config = model.Config(vocab_size=300, d_model=32, dropout=0.1)
    task = task_class("translation")(model(config), None)
    task.module.train()
    options = TrainingOptions(max_steps=1)
    batch = pairs(24, 9, 9)
    whole = stored_by(task.module, lambda: task.losses(batch, None))
    assert activations_of(task, batch, options, 12) == pytest.approx(whole, rel=0.05)
    assert activations_of(task, batch, options, 24) == whole
    meta = on_meta("translation", name, 300, d_model=32, dropout=0.1)
    assert 0.4 * whole < count(meta, batch)[2] < 1.5 * whole  # other kernels keep other things


def test_a_recipe_with_data_is_estimated_from_its_batches(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a b c\td e f g\n" * 60)
    (tmp_path / "small.toml").write_text("""
task = "translation"
[data]
train = ["pairs.tsv"]
valid = ["pairs.tsv"]
max_tokens_per_batch = 60
[tokenizer]
kind = "words"
vocab_size = 11
[model]
name = "transformer"
size = "tiny"
d_model = 8
heads = 2
[training]
epochs = 3
gradient_accumulation_steps = 2
[training.optimizer]
name = "sgd"
learning_rate = 1.0
""")
    found = estimate(tmp_path / "small.toml")
    assert found.vocabulary.startswith("11 tokens, trained")
    # Six positions a target (<s> d e f g </s>), ten rows a batch, six batches an epoch.
    assert found.steps == 9 and found.count == 2 * 50
    assert found.flops == 2 * transformer_flops(10, 4, 5, 8, 256, 4, 11)
    assert found.memory["sgd's tables"] == 0
    assert found.published == ()  # the size was changed
    assert found.seconds is not None and found.totals()["seconds"] == 9 * found.seconds
    assert "examples of a batch, on this machine" in found.measured


def test_the_first_limit_decides_the_estimated_updates():
    def steps(batches_per_epoch=None, **limits):
        return steps_of(TrainingOptions(**limits), batches_per_epoch, items=100.0)

    assert steps(max_steps=7) == 7
    assert steps(epochs=2, batches_per_epoch=5) == 10
    assert steps(epochs=2, batches_per_epoch=5, gradient_accumulation_steps=2) == 6
    assert steps(tokens=250) == 3
    assert steps(max_steps=2, tokens=250, epochs=9) == 2
    assert steps(epochs=9) is None


LABELLED = re.compile('^task = "(classification|crf-tagging|tagging|parsing)"', re.MULTILINE)
NEW_MODELS = [  # the targets of labelled data are unknown without them
    path.stem
    for path in sorted(RECIPES.glob("*.toml"))
    if '\npath = "$' not in path.read_text() and not LABELLED.search(path.read_text())
]


@pytest.mark.parametrize("name", NEW_MODELS)
def test_the_recipes_of_new_models_are_estimated_without_their_data(name, monkeypatch):
    for variable in set(re.findall(r"\$\{?(\w+)", (RECIPES / f"{name}.toml").read_text())):
        monkeypatch.delenv(variable, raising=False)
    if name != "demo-transformer":  # the sentences of the examples are there: one recipe reads them
        monkeypatch.setattr(estimating, "MAX_BYTES", 0)
    found = estimate(RECIPES / f"{name}.toml", measure=False)
    assert found.totals()["parameters"] > 0 and found.flops != 0


def test_the_estimate_shows_the_memory_of_a_token_in_kilobytes(monkeypatch):
    monkeypatch.delenv("WMT14", raising=False)
    found = estimate(RECIPES / "wmt14-transformer-base.toml", measure=False)
    kept = found.memory | {"activations": 300_000 * found.batch_tokens}
    told = replace(found, memory=kept).text().splitlines()
    assert ["a", "token", "300.0", "KB"] in [line.split() for line in told]


def test_the_estimate_says_that_memory_is_too_small(monkeypatch, tmp_path):
    monkeypatch.setattr(estimating, "free_memory", lambda: 1000)
    found = estimate(RECIPES / "ptb-lstm-small.toml", ["data.batch_size=2"])
    assert found.seconds is None and "GB of memory would be needed" in found.measured


def test_the_memory_of_each_optimizer_is_that_of_its_tables():
    model = torch.nn.Linear(10, 1, bias=False)

    def tables(**options):
        chosen = TrainingOptions(max_steps=1, optimizer=OptimizerOptions(**options))
        return memory_of(model, chosen, 0)[f"{options['name']}'s tables"]

    assert tables(name="adam") == tables(name="adamw") == 80
    assert tables(name="sgd", learning_rate=1.0, momentum=0.9) == 40
    assert tables(name="sgd", learning_rate=1.0) == 0
