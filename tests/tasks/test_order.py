"""The order of rows of tasks on encoders: random if padding is not computed, else by length.

Tests of `regard.tasks.encoding`, `regard.tasks.tagging` and `regard.tasks.classification`.
"""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
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
