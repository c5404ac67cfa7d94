"""Show, Attend and Tell against its equations, written word by word in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_weights import randomized
from torch.nn import functional as F

from regard.attention.selection import CHOICE_LOG_PROBS
from regard.data.batches import Sequences
from regard.data.images import RegionTable
from regard.models.show_attend_tell import (
    ATTENTION_WEIGHTS,
    ShowAttendTell,
    ShowAttendTellConfig,
)

V, REGION, D, WORD = 11, 6, 8, 5
SMALL = dict(d_region=REGION, d_model=D, d_embedding=WORD, dropout=0.0)


def made(**options):
    torch.manual_seed(1)
    return randomized(ShowAttendTell(ShowAttendTellConfig(V, **SMALL | options)), 0.3)


def images(count=3, regions=4):
    numbers = np.random.default_rng(2).normal(size=(count, regions, REGION))
    return RegionTable(numbers.astype(np.float32))


class Naive:
    """One image, one word at a time."""

    def __init__(self, model):
        self.weights = model.double().state_dict()
        self.attends = model.config.attention != "mean"

    def linear(self, name, x):
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def scores(self, regions, words):
        mean = regions.mean(0)
        h, c = self.linear("first_hidden", mean).tanh(), self.linear("first_cell", mean).tanh()
        found, alphas = [], []
        for word in words:
            energies = torch.zeros(len(regions)).double()
            if self.attends:
                inner = self.linear("score.query", h) + self.linear("score.key", regions)
                energies = self.linear("score.weigh", inner.tanh())[:, 0]
            alphas.append(energies.softmax(0))
            context = self.linear("gate", h).sigmoid() * (alphas[-1] @ regions)
            embedded = self.weights["embedding.weight"][word]
            gates = self.linear("words", embedded)
            gates = gates + self.linear("gates", torch.cat([context, h]))
            i, f, g, o = gates.chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            output = embedded + self.linear("hidden_output", h)
            output = output + self.linear("context_output", context)
            found.append(self.linear("head", output))
        return torch.stack(found), torch.stack(alphas)


@pytest.mark.parametrize("attention", ["soft", "mean"])
@pytest.mark.parametrize("regions", [1, 4])
def test_scores_and_weights_are_those_of_the_equations(attention, regions):
    model, table = made(attention=attention), images(regions=regions)
    words = torch.tensor([[1, 4, 7, 4], [1, 9, 3, 2], [1, 5, 5, 5]])
    naive = Naive(model)
    source = table.select([2, 0, 1])
    output = model.train()(source, Sequences.full(words))
    scores = model.head.logits(output.hidden)
    weights = output.extras[ATTENTION_WEIGHTS]
    assert weights.shape == (3, 4, regions)
    for row, image in enumerate((2, 0, 1)):
        regions = torch.from_numpy(table.features[image].astype(np.float64))
        wanted, alphas = naive.scores(regions, words[row])
        torch.testing.assert_close(scores[row], wanted)
        torch.testing.assert_close(weights[row], alphas)


def test_the_weights_of_hard_attention_are_those_before_the_choice():
    soft, hard = made(), made(attention="hard", expected_share=0.0)
    hard.load_state_dict(soft.state_dict())
    target = Sequences.full(torch.tensor([[1, 4]]))
    wanted = soft.train()(images(1).select([0]), target).extras[ATTENTION_WEIGHTS]
    output = hard.train()(images(1).select([0]), target)
    torch.testing.assert_close(output.extras[ATTENTION_WEIGHTS][:, :1], wanted[:, :1])
    log_prob = output.extras[CHOICE_LOG_PROBS][0, 0]
    assert (log_prob - wanted[0, 0].log()).abs().min() < 1e-6
