"""Show, Attend and Tell: the weights of hard attention, and its draws."""

from __future__ import annotations

import numpy as np
import torch

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
    model = ShowAttendTell(ShowAttendTellConfig(V, **SMALL | options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def images(count=3, regions=4):
    numbers = np.random.default_rng(2).normal(size=(count, regions, REGION))
    return RegionTable(numbers.astype(np.float32))


def test_the_weights_of_hard_attention_are_those_before_the_choice():
    soft, hard = made(), made(attention="hard", expected_share=0.0)
    hard.load_state_dict(soft.state_dict())
    target = Sequences.full(torch.tensor([[1, 4]]))
    wanted = soft.train()(images(1).select([0]), target).extras[ATTENTION_WEIGHTS]
    output = hard.train()(images(1).select([0]), target)
    torch.testing.assert_close(output.extras[ATTENTION_WEIGHTS][:, :1], wanted[:, :1])
    log_prob = output.extras[CHOICE_LOG_PROBS][0, 0]
    assert (log_prob - wanted[0, 0].log()).abs().min() < 1e-6


def test_drawn_regions_depend_on_the_image_and_not_on_its_batch():
    model, table = made(attention="hard", choice_seed=4).eval(), images(6)
    words = torch.tensor([[1, 4, 7, 4, 3, 2]])
    with torch.no_grad():
        both = model(table.select(range(6)), Sequences.full(words.expand(6, -1))).hidden
        for row in (5, 0, 3):
            alone = RegionTable(table.features[row : row + 1])
            found = model(alone.select([0]), Sequences.full(words)).hidden[0]
            torch.testing.assert_close(found, both[row])
