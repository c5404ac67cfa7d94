"""GPT-2: its four sizes, and its initial weights."""

from __future__ import annotations

import math

import pytest
import torch

from regard.attention.scores import Dot
from regard.models.gpt2 import GPT2, PUBLISHED, GPT2Config, score_of


@pytest.mark.parametrize(
    "size, exact",
    [
        ("124M", 124_439_808),
        ("355M", 354_823_168),
        ("774M", 774_030_080),
        ("1558M", 1_557_611_200),
    ],
)
def test_gpt2_has_the_parameters_of_the_released_models(size, exact):
    with torch.device("meta"):
        model = GPT2(GPT2Config(vocab_size=50257, **GPT2.SIZES[size]))
    assert sum(p.numel() for p in model.parameters()) == exact
    printed, source = PUBLISHED[size]["parameters"]
    assert f"{exact:,}" in source
    # The reason that is given: with GPT's vocabulary the count rounds to what is printed.
    with_fewer = exact - (50257 - 40478) * model.config.d_model
    assert round(with_fewer / 1e6) * 1e6 == printed


def test_matrices_before_the_residual_sum_have_smaller_initial_weights():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=500, d_model=128, heads=4, layers=8, output="own")
    model = GPT2(config)
    small = 0.02 / math.sqrt(16)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            wanted = small if name.endswith(("attention.output.weight", "outer.weight")) else 0.02
            assert float(parameter.detach().std()) == pytest.approx(wanted, rel=0.05), name
        elif "norm" in name and name.endswith("weight"):
            assert (parameter == 1).all()
        else:
            assert (parameter == 0).all(), name


def test_the_config_decides_the_scale_of_the_scores():
    options = dict(vocab_size=9, d_model=8, heads=2)
    assert score_of(GPT2Config(**options), 2) == Dot()
    assert score_of(GPT2Config(**options, scaled=False), 2) == Dot(1.0)
    assert score_of(GPT2Config(**options, scaled_by_layer=True), 2) == Dot(4**-0.5 / 3)
    both = GPT2Config(**options, scaled=False, scaled_by_layer=True)
    assert score_of(both, 2) == Dot(1 / 3)
