"""Schedules against their formulas and against the schedulers of transformers."""

from __future__ import annotations

import math

import pytest

from regard.errors import ConfigError
from regard.training import ScheduleOptions
from regard.training.schedules import (
    ScheduleStep,
    cosine,
    inverse_square_root,
    linear,
    noam,
    schedule,
)

WARMUP, TOTAL = 7, 40


def judge(name: str):
    """transformers' multiplier at a step, where step u is our step u (theirs begins with 0)."""
    optimization = pytest.importorskip("transformers.optimization")
    cases = {
        "linear": (
            optimization._get_linear_schedule_with_warmup_lr_lambda,
            {"num_warmup_steps": WARMUP, "num_training_steps": TOTAL + 1},
        ),
        "cosine": (
            optimization._get_cosine_schedule_with_warmup_lr_lambda,
            {"num_warmup_steps": WARMUP, "num_training_steps": TOTAL + 1, "num_cycles": 0.5},
        ),
        "inverse-sqrt": (
            optimization._get_inverse_sqrt_schedule_lr_lambda,
            {"num_warmup_steps": WARMUP, "timescale": WARMUP},
        ),
        "constant": (
            optimization._get_constant_schedule_with_warmup_lr_lambda,
            {"num_warmup_steps": WARMUP},
        ),
    }
    function, arguments = cases[name]
    return lambda step: function(step, **arguments)


@pytest.mark.parametrize("name", ["linear", "cosine", "inverse-sqrt", "constant"])
def test_schedules_equal_those_of_transformers(name):
    theirs, ours = judge(name), schedule(ScheduleOptions(name, warmup=WARMUP))
    share = schedule(ScheduleOptions(name, warmup=WARMUP / TOTAL - 1e-3))  # up to whole steps
    for step in range(1, TOTAL + 1):
        for made in (ours, share):
            rate = made(ScheduleStep(step, 0, TOTAL))
            assert rate == pytest.approx(theirs(step), abs=1e-12), step


def test_noam_is_equation_3_and_a_rescaled_peak_form():
    """4000 steps of warm-up at width 512 give the famous peak of 7.0e-4."""
    for step in (1, 10, 3999, 4000, 4001, 100_000):
        expected = 512 ** (-0.5) * min(step ** (-0.5), step * 4000 ** (-1.5))
        assert noam(step, 512, 4000) == expected
        peak = (512 * 4000) ** -0.5
        assert noam(step, 512, 4000) == pytest.approx(peak * inverse_square_root(step, 4000))
    assert noam(4000, 512, 4000) == pytest.approx(6.99e-4, rel=1e-3)


def test_linear_and_cosine_decays_reach_their_end_after_the_last_step():
    assert linear(TOTAL, TOTAL, WARMUP) == pytest.approx(1 / (TOTAL + 1 - WARMUP))
    assert linear(TOTAL + 1, TOTAL, WARMUP) == 0
    assert cosine(TOTAL + 1, TOTAL, WARMUP, min_lr_ratio=0.1) == pytest.approx(0.1)


@pytest.mark.parametrize("name", ["linear", "cosine", "step", "slanted-triangular"])
@pytest.mark.parametrize("warmup", [0.05, 5])
def test_an_unknown_end_is_one_that_is_far_away(name, warmup):
    """No token was predicted yet, so that nobody knows how many steps there will be."""
    if name == "slanted-triangular" and warmup >= 1:
        return  # its warm-up is a share
    multiplier = schedule(ScheduleOptions(name, warmup=warmup, constant_epochs=1))
    for step in (1, 2, 40):
        far = multiplier(ScheduleStep(step, 0, 1e12))
        assert multiplier(ScheduleStep(step, 0, math.inf)) == pytest.approx(far, abs=1e-9)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"name": "inverse-sqrt", "warmup": 0},
            "`warmup` of the schedule options must be above 0 for",
        ),
        ({"name": "noam", "warmup": 4}, "`d_model` of the schedule options must be the width"),
    ],
)
def test_wrong_options_are_errors(wrong, message):
    with pytest.raises(ConfigError, match=message):
        ScheduleOptions(**wrong)
    with pytest.raises(ConfigError, match="must be one of constant"):
        object.__setattr__(options := ScheduleOptions(), "name", "zigzag")
        schedule(options)
