"""GPT-2: its four sizes, and its initial weights."""

from __future__ import annotations

import math

import pytest
import torch

from regard.attention.attend import Dot
from regard.models.gpt2 import GPT2, GPT2Config, score_of


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
