"""Relative effective context length against its definition, token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from effective_context import losses_by_context, relative_effective_context

from regard.errors import ConfigError, RegardError
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.models.transformer_xl import TransformerXL, TransformerXLConfig

CONTEXTS = [1, 2, 4, 8]


def naive(losses, contexts, share, threshold):
    found = {}
    tokens = len(next(iter(losses.values()))[0])
    for name, own in losses.items():
        found[name] = contexts[-1]
        for at, context in enumerate(contexts[:-1]):
            best = [min(one[at][t] for one in losses.values()) for t in range(tokens)]
            order = sorted(range(tokens), key=lambda t, best=best: -best[t])
            hardest = order[: max(1, round(share * tokens))]
            f = [sum(min(best[t], own[n][t]) for t in hardest) / len(hardest) for n in (at, at + 1)]
            if (f[0] - f[1]) / f[0] < threshold:
                found[name] = context
                break
    return found


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_lengths_are_those_of_the_definition(seed, share):
    draw = np.random.default_rng(seed)
    start = draw.uniform(1, 5, 40)
    gains = {name: draw.uniform(0, 0.1, (4, 40)).cumsum(0) for name in "abc"}
    losses = {
        name: np.maximum(start - gain * draw.uniform(0, 2), 0.01) for name, gain in gains.items()
    }
    wanted = naive(losses, CONTEXTS, share, 0.01)
    assert relative_effective_context(losses, CONTEXTS, share=share) == wanted


def test_a_model_without_gain_has_the_shortest_and_one_that_gains_the_longest():
    flat = np.full((4, 10), 3.0)
    falling = np.array([3.0, 2.0, 1.0, 0.5])[:, None].repeat(10, 1)
    found = relative_effective_context({"flat": flat, "falling": falling}, CONTEXTS)
    assert found == {"flat": 1, "falling": 8}


@pytest.mark.parametrize("kind", ["gpt2", "lstm", "transformer-xl"])
def test_losses_are_those_of_each_context_by_itself(kind):
    torch.manual_seed(1)
    model = {
        "gpt2": lambda: GPT2(GPT2Config(20, d_model=8, heads=2, layers=2, max_length=5)),
        "lstm": lambda: RecurrentLanguageModel(RecurrentConfig(20, d_model=8)),
        "transformer-xl": lambda: TransformerXL(
            TransformerXLConfig(20, d_model=8, d_ff=8, heads=2, layers=2, cutoffs=(9,))
        ),
    }[kind]()
    ids = torch.randint(20, (30,), generator=torch.Generator().manual_seed(2)).tolist()
    found = losses_by_context(model, ids, CONTEXTS, [8, 17, 29])
    assert found.shape == (4, 3)
    for row, context in enumerate(CONTEXTS):
        read = min(context, model.config.max_length or context)
        for column, target in enumerate((8, 17, 29)):
            window = torch.tensor([ids[target - read : target]])
            with torch.no_grad():
                scores = model.eval().head.logits(model(window).hidden)[0, -1]
            wanted = -scores.double().log_softmax(-1)[ids[target]]
            assert found[row, column] == pytest.approx(float(wanted), abs=1e-5)


def test_wrong_input_is_an_error():
    model = RecurrentLanguageModel(RecurrentConfig(20, d_model=8))
    with pytest.raises(ConfigError, match="8 tokens, before"):
        losses_by_context(model, range(20), CONTEXTS, [7])
    with pytest.raises(RegardError, match="of one shape"):
        relative_effective_context({"a": np.ones((4, 2)), "b": np.ones((4, 3))}, CONTEXTS)
    with pytest.raises(RegardError, match="ascend"):
        relative_effective_context({"a": np.ones((2, 2))}, [4, 2])
