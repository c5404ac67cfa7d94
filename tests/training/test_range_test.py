"""The learning-rate range test: rates, losses of the real step, smoothing and suggestions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from toy import Toy, options

from regard.errors import ConfigError
from regard.progress import Silent
from regard.training import OptimizerOptions, ScheduleOptions, Trainable, train
from regard.training.metrics_log import read_events
from regard.training.range_test import RangeTest, range_test, smoothed


def found_in(task, chosen, **changed) -> RangeTest:
    given = dict(seed=1, start=1e-5, end=1.0, steps=30) | changed
    return range_test(task, chosen, Silent(), **given)


def test_rates_grow_exponentially_from_start_to_end():
    found = found_in(Toy(), options(), start=1e-6, end=1e-2, steps=25)
    np.testing.assert_allclose(found.rates, np.geomspace(1e-6, 1e-2, 25), rtol=1e-12)


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_the_losses_are_those_of_a_training_with_these_rates(tmp_path, monkeypatch, schedule):
    """Dropout, accumulation, clipping, a carried state: the training gets the rates of the test."""
    chosen = options(max_steps=20, logging_steps=1, schedule=ScheduleOptions(schedule))
    found = found_in(Toy(), chosen, steps=20, start=1e-4, end=1e-1)
    rates = iter(found.rates)
    monkeypatch.setattr("regard.training.loop.Loop.scheduled_rate", lambda self: next(rates))
    train(Toy(), chosen, tmp_path, seed=1, progress=False)
    events = [e for e in read_events(tmp_path) if "train/loss" in e]
    assert found.losses == tuple(event["train/loss"] for event in events)
    assert found.rates == tuple(event["lr"] for event in events)


class Line(Trainable):
    """The mean square of one number, 3 at the start."""

    goal = ("loss", "min")

    def __init__(self):
        self.module = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.module.weight, 3.0)

    def train_batches(self):
        from regard.data import EpochSampler

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


def sgd(**changed):
    return options(
        gradient_accumulation_steps=1,
        optimizer=OptimizerOptions("sgd", 1.0, max_grad_norm=0.0, **changed),
    )


def test_steps_equal_gradient_descent_by_hand():
    found = found_in(Line(), sgd(), start=1e-3, end=0.9, steps=20)
    weight, expected = 3.0, []
    for rate in np.geomspace(1e-3, 0.9, 20):
        expected.append(weight**2)
        weight -= rate * 2 * weight
    np.testing.assert_allclose(found.losses, expected, rtol=1e-4, atol=1e-12)


def test_the_range_test_stops_when_the_smoothed_loss_is_four_times_its_lowest():
    found = found_in(Line(), sgd(), start=1e-3, end=100.0, steps=100)
    means = smoothed(found.losses)
    assert found.diverged and len(found.rates) < 100
    assert means[-1] > 4 * min(means)
    assert all(mean <= 4 * min(means[: i + 1]) for i, mean in enumerate(means[:-1]))
    assert found.suggestion < found.minimum


def test_the_range_test_stops_where_the_loss_is_not_finite():
    class Broken(Line):
        left = 12

        def losses(self, batch, carry):
            self.left -= 1
            found, carry = super().losses(batch, carry)
            total, count = found["loss"]
            return {"loss": (total if self.left > 0 else total * math.inf, count)}, carry

    found = found_in(Broken(), sgd(), steps=40)
    assert found.diverged and len(found.losses) == len(found.rates) == 11


def test_smoothing_is_the_bias_corrected_moving_average():
    draw = np.random.default_rng(1).random(50)
    weights = 0.98 ** np.arange(50)[::-1]
    for count in (1, 2, 50):
        expected = (weights[-count:] * draw[:count]).sum() / weights[-count:].sum()
        assert smoothed(draw[:count].tolist())[-1] == pytest.approx(expected)


def naive_suggestions(rates, losses, steps):
    """The rules of fastai: the first tenth and the last five are left out."""
    rates, means = (np.array(one)[steps // 10 : -5] for one in (rates, smoothed(losses)))
    slopes = np.diff(means) / np.diff(np.log(rates))
    return rates[means.argmin()], rates[:-1][slopes.argmin()]


@pytest.mark.parametrize("seed", range(4))
def test_suggestions_equal_the_rules_by_hand(seed):
    draw = np.random.default_rng(seed)
    rates = np.geomspace(1e-7, 10, 100)
    losses = 3 - 2 / (1 + np.exp(-(np.log10(rates) + 3))) + draw.normal(0, 0.05, 100)
    losses[85:] += np.arange(15)
    found = RangeTest(tuple(rates), tuple(losses), 100, False)
    lowest, steepest = naive_suggestions(rates, losses, 100)
    assert (found.minimum, found.steepest) == (lowest, steepest)
    assert found.suggestion == min(lowest / 10, steepest)


@pytest.mark.parametrize("losses", [[1.0] * 40, [1.0 + n for n in range(40)], [1.0] * 8, [2.0], []])
def test_the_suggestion_is_none_where_the_loss_does_not_fall(losses):
    found = RangeTest(tuple(np.geomspace(1e-7, 1, 40))[: len(losses)], tuple(losses), 40, True)
    assert found.suggestion is found.minimum is found.steepest is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (dict(start=0.0), "`start_lr` and `end_lr`"),
        (dict(start=1.0, end=1.0), "`start_lr` and `end_lr`"),
        (dict(end=math.inf), "`start_lr` and `end_lr`"),
        (dict(start=math.nan), "`start_lr` and `end_lr`"),
        (dict(steps=19), "at least 20"),
    ],
)
def test_a_range_that_is_none_raises_an_error(changed, said):
    with pytest.raises(ConfigError, match=said):
        found_in(Toy(), options(), **changed)
