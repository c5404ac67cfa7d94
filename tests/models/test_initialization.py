"""The initial parameters of every model have the scale that its config states."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
import torch
from models.test_registry import TINY, V, name_of
from torch import nn

from regard.models import MODELS, model_class

SCALES = ("init_range", "init_scale")
# Parameters with a scale of their own: projections of adaptive vocabularies, relations of Shaw et
# al., and what the config does not speak of in AWD-LSTM, T5 and Baevski and Auli's Transformer.
FIXED = {
    "": r"projections\.\d|relations.layers.\d+.(keys|values)$",
    "awd-lstm": "layers.|last.|head.bias",
    "t5": "head.weight",
    "adaptive-transformer": "embedding.tables.|head.",
}


def scale_of(name: str) -> str | None:
    names = {field.name for field in fields(model_class(name).Config)}
    return next((scale for scale in SCALES if scale in names), None)


CASES = [(name, n) for name in MODELS if scale_of(name) for n in range(len(TINY[name]))]


def new_model(name: str, n: int, factor: float) -> nn.Module:
    kind, scale = model_class(name), scale_of(name)
    config = kind.Config(vocab_size=V, **TINY[name][n])
    torch.manual_seed(3)
    return kind(replace(config, **{scale: factor * getattr(config, scale)}))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_parameters_grow_with_the_scale_of_the_config(case):
    """Drawn from the same numbers, twice the scale gives twice the deviation from 0 or 1."""
    small, large = new_model(*case, 1.0), new_model(*case, 2.0)
    fixed = re.compile("|".join(FIXED[key] for key in ("", case[0]) if key in FIXED))
    for name, parameter in small.named_parameters():
        other, center = large.get_parameter(name), 1.0 if "norm" in name else 0.0
        if fixed.search(name) or parameter.std(unbiased=False) == 0:
            assert torch.equal(other, parameter), name
        else:
            torch.testing.assert_close(other - center, 2 * (parameter - center), msg=name)
