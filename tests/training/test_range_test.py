"""The learning-rate range test: rates, losses of the real step, smoothing and the suggestion."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from recipe_files import written
from torch import nn
from toy import Toy, options
from typer.testing import CliRunner

from regard.cli import app
from regard.recipe import parse
from regard.training import steps
from regard.training.callbacks import Trainable
from regard.training.metrics_log import read_events
from regard.training.options import OptimizerOptions
from regard.training.run import train
from regard.training.steps import smoothed, suggested_rate


def curve(task, chosen):
    rates, losses = zip(*steps.range_test(task, chosen, 1), strict=True)
    return rates, losses


def test_the_losses_are_those_of_a_training_with_these_rates(tmp_path, monkeypatch):
    """Dropout, accumulation, clipping, a carried state: the training gets the rates of the test."""
    monkeypatch.setattr(steps, "STEPS", 20)
    monkeypatch.setattr(steps, "END", 1e-1)
    chosen = options(max_steps=20, logging_steps=1)
    rates, losses = curve(Toy(), chosen)
    np.testing.assert_allclose(rates, np.geomspace(1e-7, 1e-1, 20), rtol=1e-12)
    given = iter(rates)
    monkeypatch.setattr("regard.training.loop.Loop.scheduled_rate", lambda self: next(given))
    train(Toy(), chosen, tmp_path, seed=1, progress=False)
    events = [e for e in read_events(tmp_path) if "train/loss" in e]
    assert losses == tuple(event["train/loss"] for event in events)
    assert rates == tuple(event["lr"] for event in events)


class Line(Trainable):
    """The mean square of one number, 3 at the start."""

    goal = ("loss", "min")

    def __init__(self):
        self.module = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.module.weight, 3.0)

    def train_batches(self):
        from regard.data.sampler import EpochSampler

        return EpochSampler(self)

    def epoch(self, number):
        return [torch.ones(2, 1)] * 4

    def identity(self):
        return {}

    def counts(self, batch):
        return {"loss": len(batch)}

    def losses(self, batch, carry):
        return {"loss": (self.module(batch).square().sum(), len(batch))}, carry

    def validate(self):
        return {}


def sgd():
    return options(
        gradient_accumulation_steps=1, optimizer=OptimizerOptions("sgd", 1.0, max_grad_norm=0.0)
    )


def test_steps_equal_gradient_descent_by_hand_until_the_loss_diverges(monkeypatch):
    monkeypatch.setattr(steps, "START", 1e-3)
    monkeypatch.setattr(steps, "END", 100.0)
    rates, losses = curve(Line(), sgd())
    weight, expected = 3.0, []
    for rate in rates:
        expected.append(weight**2)
        weight -= rate * 2 * weight
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-12)
    means = smoothed(losses)
    assert len(rates) < 100 and means[-1] > 4 * min(means)
    assert all(mean <= 4 * min(means[: i + 1]) for i, mean in enumerate(means[:-1]))


@pytest.mark.parametrize("seed", range(2))
def test_the_suggestion_equals_the_rules_by_hand(seed):
    """The rules of fastai: the first tenth and the last five are left out."""
    draw = np.random.default_rng(seed)
    rates = np.geomspace(1e-7, 10, 100)
    losses = 3 - 2 / (1 + np.exp(-(np.log10(rates) + 3))) + draw.normal(0, 0.05, 100)
    losses[85:] += np.arange(15)
    kept, means = rates[10:-5], np.array(smoothed(losses.tolist()))[10:-5]
    steepest = kept[:-1][(np.diff(means) / np.diff(np.log(kept))).argmin()]
    expected = min(kept[means.argmin()] / 10, steepest)
    assert suggested_rate(rates.tolist(), losses.tolist()) == expected


RECIPE = dict(
    task="classification",
    data=dict(train="rows.tsv", valid=0.25, batch_size=4),
    tokenizer=dict(kind="wordpiece", vocab_size=60),
    model=dict(name="bert", d_model=8, d_ff=8, heads=2, layers=1),
    training=dict(epochs=3, threads=1),
)


def test_the_command_prints_the_lines_of_a_recipe_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{text} {n}\t{text}\n" for n in range(8) for text in ("good", "bad")]
    Path("rows.tsv").write_text("".join(rows))
    written("small.toml", RECIPE)

    def ran(*words):
        done = CliRunner().invoke(app, ["find-lr", "small.toml", *words])
        assert done.exit_code == 0, done.output
        return done

    done = ran()
    rate = parse(done.stdout).tables["training"]["optimizer"]["learning_rate"]
    assert 1e-6 < rate < 10 and "loss" in done.stderr
    facts = json.loads(ran("--json", "training.schedule.name=cosine").stdout)
    assert facts["learning_rate"] == rate
    noam = "training.schedule={name='noam',warmup=10,d_model=8}"
    of_noam = json.loads(ran("--json", noam).stdout)
    peak = 8**-0.5 * 10**-0.5
    exact = suggested_rate(facts["rates"], facts["losses"]) / peak
    assert of_noam["learning_rate"] == float(f"{exact:.2g}")
    assert sorted(one.name for one in Path().iterdir()) == ["rows.tsv", "small.toml"]
