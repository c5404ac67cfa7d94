"""The order of rows of tasks on encoders: random if padding is not computed, else by length.

Tests of `regard.tasks.encoding`, `regard.tasks.tagging` and `regard.tasks.classification`.
"""

from __future__ import annotations

import json
import random
import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from recipe_files import planned as planned_recipe
from recipe_files import written
from tiny_folders import ENCODERS, folder

from regard.data.encoder_inputs import BATCHES_PER_POOL
from regard.experiments import runs
from regard.models.bert import Bert
from regard.models.composed import Features
from regard.recipe import read

SIZES = np.random.default_rng(3).integers(1, 20, 32)
ROWS = 4  # of a batch
OVERRIDES = (f"data.batch_size={ROWS}", "training.checkpoints.save_steps=1")
RECIPE = dict(
    model=dict(path="start"), training=dict(epochs=2, checkpoints=dict(save_total_limit=99))
)


@pytest.fixture
def workdir(tmp_path, monkeypatch) -> Path:
    """Rows of 1 to 19 words for three kinds of task."""
    texts = [" ".join(["ball"] * int(n)) for n in SIZES]
    (tmp_path / "train.tsv").write_text(
        "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(texts))
    )
    tagged = ["".join(f"{word} {'OX'[i % 2]}\n" for word in t.split()) for i, t in enumerate(texts)]
    (tmp_path / "train.txt").write_text("\n".join(tagged))
    asked = [
        {"context": text, "question": "who ?", "choices": ["a dog", "the cat"], "answer": i % 2}
        for i, text in enumerate(texts)
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_recipe(task: str) -> None:
    kinds = {"tagging": "txt", "multiple-choice": "jsonl"}
    data = dict(train=f"train.{kinds.get(task, 'tsv')}")
    data |= dict(scheme="none") if task == "tagging" else {}
    written("small.toml", RECIPE, dict(task=task, data=data))


def planned(task: str, *overrides: str):
    write_recipe(task)
    return runs.plan(runs.read_recipe("small.toml", [*OVERRIDES, *overrides])).task


def pool_of(task) -> int | None:
    return task.train_batches().position()["pool"]


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("task", ["classification", "regression", "tagging", "multiple-choice"])
def test_examples_are_in_random_order_on_a_cpu(workdir, task, family):
    folder(workdir / "start", family, "Model" if family in ENCODERS else "LMHeadModel")
    made = planned(task)
    batches = made.train_batches()
    numbers = [one.numbers for one in islice(batches, batches.batches_per_epoch)]
    assert [len(one) for one in numbers] == [ROWS] * (len(SIZES) // ROWS)
    assert sorted(torch.cat(numbers).tolist()) == list(range(len(SIZES)))
    # Four of 32 rows that are sorted by length differ by 2 words in the mean, random ones by 11.
    spreads = [np.ptp(SIZES[one]) for one in numbers]
    assert np.mean(spreads) > 6


@pytest.mark.parametrize("task", ["classification", "multiple-choice"])
def test_examples_of_similar_length_are_batched_where_padding_is_computed(workdir, task):
    """On other devices than a CPU, and under a model that reads padded rows."""
    folder(workdir / "start", "bert", "Model")
    made = planned(task)
    assert pool_of(made) is None
    made.module.to("meta")
    assert pool_of(made) == ROWS * BATCHES_PER_POOL
    numbers = [one.numbers for one in islice(made.train_batches(), len(SIZES) // ROWS)]
    assert np.mean([np.ptp(SIZES[one]) for one in numbers]) < 6


def test_a_bilstm_over_features_has_batches_of_similar_length(workdir):
    folder(workdir / "start", "bert", "Model")
    made = planned("tagging", "model.features.d_model=6")
    assert isinstance(made.module.encoder, Features)
    assert pool_of(made) == ROWS * BATCHES_PER_POOL


def test_a_resumed_run_keeps_the_order_of_its_start(workdir, monkeypatch):
    """Such as a run from a GPU, or of a version that sorted rows on every device."""
    folder(workdir / "start", "bert", "Model")
    write_recipe("classification")
    with monkeypatch.context() as patch:
        patch.setattr(Bert, "unpadded", False)
        runs.train_recipe(read("small.toml", OVERRIDES), out="whole", progress=False)
    weights = Path("whole/model/model.safetensors").read_bytes()
    for kept in (4, 10):  # checkpoints: the sampler is then in the first epoch, or in the second
        shutil.copytree("whole", "part")
        Path("part/result.json").unlink()
        for step in sorted(Path("part/checkpoints").glob("step-*"))[kept:]:
            shutil.rmtree(step)
        runs.resume("part", progress=False)
        assert Path("part/model/model.safetensors").read_bytes() == weights
        shutil.rmtree("part")
    runs.train_recipe(read("small.toml", OVERRIDES), out="anew", progress=False)
    assert Path("anew/model/model.safetensors").read_bytes() != weights


# ---- validation data

WORDS = "the old cat sat on a warm mat and was sleeping in the sun".split()
ENCODER = dict(d_model=16, d_ff=16, heads=2, layers=1)
MASKED = dict(
    task="masked-language-modeling", model=dict(name="bert"),
    data=dict(train=["text.txt"], valid=0.2, max_length=16), tokenizer=dict(kind="words"),
    training=dict(max_steps=1),
)  # fmt: skip
T5, XLNET = dict(name="t5", head_dim=8), dict(name="xlnet")
PRETRAINING = {
    "masked words": {},
    "masked words and pairs": dict(data=dict(sentence_pairs=True)),
    "replaced tokens": dict(
        task="replaced-tokens", model=dict(name="electra", d_embedding=8),
        objective=dict(generator_size=0.5),
    ),
    "corrupted spans": dict(
        task="span-corruption", model=T5,
        data=dict(max_length=None, source_length=60, batch_size=3),
    ),
    "orders": dict(
        task="permutation-language-modeling", model=XLNET,
        data=dict(train="text.txt", max_length=None, sequence_length=24, batch_size=4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", PRETRAINING)
def test_equal_weights_have_equal_scores_whatever_the_seed(kind, tmp_path, monkeypatch):
    draw = random.Random(1)
    texts = ["\n".join(" ".join(draw.choices(WORDS, k=9)) for _ in range(4)) for _ in range(40)]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n\n".join(texts))
    changes = [dict(model=ENCODER), PRETRAINING[kind]]
    first, second = (
        planned_recipe("one.toml", MASKED, *changes, dict(seed=seed)).task for seed in (1, 2)
    )
    assert first.validate() != second.validate()
    second.module.load_state_dict(first.module.state_dict())
    assert first.validate() == pytest.approx(second.validate(), rel=1e-6)
