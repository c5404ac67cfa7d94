"""Schedules against their formulas, and the defaults of a training."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from regard.experiments.recipe_options import read_recipe
from regard.models.config import TRANSFORMER
from regard.training.optimizers import (
    ScheduleStep,
    inverse_square_root,
    schedule,
)
from regard.training.options import (
    ScheduleOptions,
    TrainingOptions,
    with_defaults,
)

TOTAL = 40


@pytest.mark.parametrize(("size", "d_model"), [("base", 512), ("big", 1024)])
def test_the_rates_of_the_papers_transformers_are_equation_3(size, d_model):
    training = read_recipe(f"recipes/wmt14-transformer-{size}.toml", keep_unset=True).training
    rate, warmup = training.optimizer.learning_rate, training.schedule.warmup
    for step in (1, 10, 3999, 4000, 4001, 100_000):
        expected = d_model ** (-0.5) * min(step ** (-0.5), step * 4000 ** (-1.5))
        scheduled = rate * inverse_square_root(step, warmup)
        assert scheduled == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("total", [1, 2, 10, 33, 100])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_slanted_triangles_are_equation_3_of_ulmfit(total, share):
    made = schedule(ScheduleOptions("slanted-triangular", warmup=share, div_factor=20))
    cut = max(1, math.floor(total * share))
    for step in range(1, total + 1):
        part = step / cut if step < cut else 1 - (step - cut) / (cut * (1 / share - 1))
        expected = (1 + max(0, part) * (20 - 1)) / 20
        assert made(ScheduleStep(step, 0, total)) == pytest.approx(expected, abs=1e-12)


LEFT = {  # at a step after the warm-up, with so much of the decay ahead
    "constant": lambda left, step, warmup: 1,
    "linear": lambda left, step, warmup: 0.2 + 0.8 * left,
    "cosine": lambda left, step, warmup: 0.2 + 0.8 * (1 - math.cos(math.pi * left)) / 2,
    "inverse-sqrt": lambda left, step, warmup: math.sqrt(warmup / step),
}


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("warmup", [0, 1, 5, TOTAL])
def test_schedules_grow_to_the_peak_and_then_follow_their_formulas(name, warmup):
    warmup = max(warmup, name == "inverse-sqrt")
    made = schedule(ScheduleOptions(name, warmup=warmup, min_lr_ratio=0.2))
    for step in range(1, TOTAL + 1):
        left = (TOTAL + 1 - step) / (TOTAL + 1 - warmup)
        expected = step / warmup if step < warmup else min(1, LEFT[name](left, step, warmup))
        assert made(ScheduleStep(step, 0, TOTAL)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("warmup", [0, 3])
def test_a_decay_in_steps_halves_the_rate_at_each_epoch_after_the_constant_ones(warmup):
    """Zaremba et al. 2014: four epochs at the full rate."""
    made = schedule(ScheduleOptions("step", warmup=warmup, constant_epochs=4))
    rates = [made(ScheduleStep(9, epoch, TOTAL)) for epoch in range(7)]
    assert rates == [1, 1, 1, 1, 0.5, 0.25, 0.125]
    first = [made(ScheduleStep(step, 4, TOTAL)) for step in (1, 3, 4)]
    assert first == pytest.approx([1 / 6, 0.5, 0.5] if warmup else [0.5] * 3)


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


# ---- defaults

# Table 2.1 of Brown et al. 2020: width and learning rate of GPT-3 Small to 175B.
GPT3 = {
    768: 6e-4, 1024: 3e-4, 1536: 2.5e-4, 2048: 2e-4, 2560: 1.6e-4, 4096: 1.2e-4, 5140: 1e-4,
}  # fmt: skip
RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize(("width", "rate"), GPT3.items())
def test_rates_of_random_weights_fall_with_the_width_as_those_of_gpt3(width, rate):
    found = TRANSFORMER.of_random_weights(width).learning_rate
    assert rate / 1.6 < found < 1.6 * rate


@pytest.mark.parametrize("name", ["minilm-mrpc", "minilm-stsb", "minilm-conll2003"])
def test_a_published_small_encoder_is_fine_tuned_as_its_recipe_says(name):
    """The recipes whose scores are in docs/reports/results.md set what is the default."""
    recipe = read_recipe(RECIPES / f"{name}.toml", keep_unset=True)
    ours = with_defaults(TrainingOptions(), TRANSFORMER.of_trained_weights(384))
    assert (ours.epochs, ours.optimizer) == (recipe.training.epochs, recipe.training.optimizer)
    assert ours.schedule == replace(recipe.training.schedule, warmup=0.1)
    rows = {"minilm-mrpc": 4_076, "minilm-stsb": 5_749, "minilm-conll2003": 14_041}[name]
    total = math.ceil(rows / recipe.data.batch_size) * ours.epochs
    assert abs(math.ceil(0.1 * total) - recipe.training.schedule.warmup) <= 1
