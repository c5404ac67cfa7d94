"""Checks an installed Regard: which kernels it loads, and that they compute what PyTorch computes.

    python check_installation.py LEVEL     the kernels of the wheel for this level of processors
    python check_installation.py none      no kernels: PyTorch computes everything

It is run where there is no compiler, by the Python of the environment that has the wheel.
"""

from __future__ import annotations

import sys
import warnings
from typing import Literal

import torch
from torch import Tensor

from regard import ops
from regard.kernels import build
from regard.models.conversions import prepare
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.protocols import Generator
from regard.models.wrappers import generator

CLOSE = 2e-2  # of the largest: a number half way between two steps of 8 bits may go either way


def load_level(name: str) -> None:
    """Load the kernels of one level.

    Raises:
        SystemExit: a compiler is found, or others are loaded.
    """
    try:
        sys.exit(f"a compiler is found, so this shows nothing: {build.find_compiler()}")
    except build.BuildError:
        pass
    wanted = [level for level in build.levels_here() if level.name == name]
    build.levels_here = lambda: wanted  # the others are not tried
    with warnings.catch_warnings(record=True):  # of the missing compiler
        loaded = ops.load_kernels()
    if loaded != bool(wanted) or (loaded and f"kernels-{name}-" not in build.status()):
        sys.exit(f"{name}: {build.status()}")


@torch.no_grad()
def scores(model: Generator, ids: Tensor) -> Tensor:
    """The scores of the next tokens, one step for each token of ids (B, T): (B, T, V)."""
    state, found = model.empty(len(ids)), []
    for token in ids.split(1, 1):
        step_scores, state = model.step(token, state)
        found.append(step_scores)
    return torch.cat(found, 1)


def largest_difference(weights: Literal["int8", "bfloat16"]) -> float:
    """Between the scores of a small model with kernels and by PyTorch, relative to the largest.

    Raises:
        SystemExit: kernels are loaded, and do not compute the model.
    """
    torch.manual_seed(0)
    config = GPT2Config(101, d_model=64, heads=4, layers=2, max_length=32)
    model = prepare(GPT2(config).eval(), weights)
    ids = torch.randint(101, (3, 20))
    fast = generator(model)
    found = scores(fast, ids)
    with ops.reference():
        plain = generator(model)
        wanted = scores(plain, ids)
    if build.available() == (type(fast) is type(plain)):
        sys.exit(f"the model is computed by {type(fast).__name__}")
    return float((found - wanted).abs().max() / wanted.abs().max())


if __name__ == "__main__":
    load_level(sys.argv[1])
    differences = {"int8": largest_difference("int8"), "bfloat16": largest_difference("bfloat16")}
    found = ", ".join(f"{difference:.1e} ({name})" for name, difference in differences.items())
    print(f"{sys.argv[1]}: {build.status():.160}; largest difference to PyTorch {found}")
    sys.exit(not all(difference < CLOSE for difference in differences.values()))
