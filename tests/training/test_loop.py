"""The training loop: its steps, its end, its files and its errors."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn
from toy import D, Toy, V, early_stopping, options

from regard.data.batches import PairBatch, Sequences
from regard.data.sampler import EpochSampler
from regard.training.callbacks import Trainable
from regard.training.compiling import resolve
from regard.training.loop import isolated_rng, restore_rng, rng_facts, rng_tensors
from regard.training.metrics_log import read_events as events
from regard.training.options import (
    OptimizerOptions,
    ScheduleOptions,
    TrainingOptions,
)
from regard.training.run import train

# ---- what a step is ------------------------------------------------------------------------


class Ragged(Trainable):
    """Rows of very different lengths, handed out `rows` at a time; two losses of unlike counts."""

    goal = ("none", "min")

    def __init__(self, rows: int):
        torch.manual_seed(0)
        self.module = torch.nn.Sequential(torch.nn.Embedding(V, D), torch.nn.Linear(D, V))
        lists = [[i % V] * (1 + i * i % 9) for i in range(1, 25)]
        self.parts = [Sequences.of(lists[i : i + rows], 0) for i in range(0, 24, rows)]

    def train_batches(self):
        return EpochSampler(self)

    def epoch(self, number):
        return [PairBatch(part, part) for part in self.parts]

    def identity(self):
        return {}

    def counts(self, batch):
        return {"words": int(batch.target.lengths.sum()), "rows": len(batch)}

    def losses(self, batch, carry):
        logits = self.module(batch.source.ids)
        keep = batch.target.keep
        words = torch.nn.functional.cross_entropy(
            logits[keep], batch.target.ids[keep], reduction="sum"
        )
        rows = logits[:, 0].square().sum()
        counts = self.counts(batch)
        return {"words": (words, counts["words"]), "rows": (rows, counts["rows"])}, None

    def validate(self):
        return {}


@pytest.mark.parametrize("rows", [3, 4, 6])
def test_accumulated_batches_equal_one_large_batch(tmp_path, rows):
    """3 rows accumulated 4 times, 4 rows 3 times, 6 rows twice: the step of 12 rows."""
    results = []
    for size, accumulate in ((12, 1), (rows, 12 // rows)):
        task = Ragged(size)
        chosen = OptimizerOptions("sgd", 0.3, max_grad_norm=0.5)
        train(
            task,
            TrainingOptions(max_steps=6, gradient_accumulation_steps=accumulate, optimizer=chosen),
            tmp_path / f"{size}",
            progress=False,
        )
        results.append(task.module.state_dict())
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], rtol=1e-5, atol=1e-6)


def moved(task, folder) -> torch.Tensor:
    """How far an epoch of small steps takes the weights."""
    before = torch.cat([p.detach().flatten().clone() for p in task.module.parameters()])
    small = OptimizerOptions("sgd", 1e-4, max_grad_norm=1e9)
    chosen = TrainingOptions(epochs=1, optimizer=small, schedule=ScheduleOptions("constant"))
    train(task, chosen, folder, progress=False)
    return torch.cat([p.detach().flatten() for p in task.module.parameters()]) - before


def test_losses_divided_by_the_usual_count_weigh_every_item_equally(tmp_path):
    """8 batches with 6 to 21 words each take as many steps as the mean over all words would."""
    whole, batches, other = Ragged(24), Ragged(3), Ragged(3)
    batches.usual = {"words": sum(int(part.lengths.sum()) for part in batches.parts) / 8}
    wanted = 8 * moved(whole, tmp_path / "whole")
    found = moved(batches, tmp_path / "batches")
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2 * float(wanted.abs().max()))
    assert (moved(other, tmp_path / "other") - wanted).abs().max() > 0.05 * wanted.abs().max()


# ---- what it writes ---------------------------------------------------------------------------


def test_metrics_have_the_documented_keys(tmp_path):
    train(Toy(), options(tensorboard=True), tmp_path, progress=False)
    first = events(tmp_path)[0]
    names = "step epoch tokens lr grad_norm seconds tokens_per_s".split()
    assert first.keys() == {"train/loss", *names}
    assert 0.5 * np.log(V) < first["train/loss"] < 5 * np.log(V)
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_early_stopping_publishes_the_best_weights(tmp_path):
    task = Toy()
    result = train(task, early_stopping(), tmp_path, progress=False)
    scores = {e["step"]: e["valid/loss"] for e in events(tmp_path) if "valid/loss" in e}
    best = min(scores, key=scores.__getitem__)
    assert (result.best, result.best_step) == (scores[best], best)
    assert result.scores["loss"] == scores[best] != scores[result.step]
    assert list(scores) == list(range(4, best + 4 * 4 + 1, 4))  # four more, none better
    with torch.no_grad():  # as in training: without it torch computes an LSTM by another kernel
        assert task.validate()["loss"] == scores[best]
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {f"step-{best:06d}", f"step-{result.step:06d}"}


def test_random_numbers_inside_leave_all_generators_as_they_were():
    def drawn():
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    generators = rng_tensors(), rng_facts()
    with pytest.raises(KeyError), isolated_rng():
        first = drawn()
        raise KeyError
    assert drawn() == first != drawn()
    restore_rng(generators[0], json.loads(json.dumps(generators[1])))
    assert drawn() == first


def test_the_average_is_the_mean_of_the_last_checkpoints(tmp_path):
    task = Toy()
    train(task, options(), tmp_path, progress=False)
    folders = [tmp_path / "checkpoints" / f"step-{n:06d}" for n in (20, 25, 30)]
    loaded = [load_file(folder / "weights.safetensors") for folder in folders]
    published = load_file(tmp_path / "model" / "model.safetensors")
    assert published.keys() == loaded[0].keys()
    for name, value in published.items():
        expected = sum(one[name].astype(np.float64) for one in loaded) / 3
        np.testing.assert_array_equal(value, expected.astype(np.float32))
        assert torch.equal(task.module.state_dict()[name], torch.from_numpy(value))


# ---- precision --------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bfloat16", "auto"])
def test_weights_stay_float32_in_every_precision(tmp_path, precision):
    task, judge = Toy(dropout=0.0), Toy(dropout=0.0)
    train(task, options(precision=precision), tmp_path / "a", progress=False)
    train(judge, options(), tmp_path / "b", progress=False)
    assert {p.dtype for p in task.module.parameters()} == {torch.float32}
    first, second = (events(tmp_path / name)[0]["train/loss"] for name in "ab")
    assert first == pytest.approx(second, rel=0.02)


@pytest.mark.parametrize("native", [True, False])
def test_automatic_precision_is_that_of_the_processor_for_all_but_small_models(monkeypatch, native):
    monkeypatch.setattr("regard.training.compiling.computes_bfloat16", lambda device: native)
    assert resolve("auto", nn.Linear(1000, 500)) == ("bfloat16" if native else "float32")
    assert resolve("auto", nn.Linear(1000, 499, bias=False)) == "float32"
