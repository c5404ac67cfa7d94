"""The training loop waits for the device once in a step; models and their losses never do.

A tensor on the meta device has no numbers, so that every look at one is an error there; and what a
CPU does for itself alone is not done there, as it is not on a GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from toy import Toy, options

from regard.data.batches import IGNORE, StreamBatch
from regard.training import ValidationOptions, train
from regard.training.loop import Loop

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "models")]
from quick_meta import QuickMeta  # noqa: E402
from test_registry import (  # noqa: E402
    LANGUAGE_MODELS,
    UNREAD,
    build,
    ids,
    name_of,
)

# These look at the ids or lengths of a batch: which words are in a cluster of the vocabulary, how
# far paragraphs are apart, which blocks of a text there are, where the cells of a row end.
LOOKING = {
    ("awd-lstm", 1),  # texts of more windows than learn
    ("transformer-xl", 0),
    ("transformer-xl", 1),
    ("compressive-transformer", 0),
    ("adaptive-transformer", 0),
    ("bigbird", 1),
    ("lstm-seq2seq", 5),
}


def looks(case):
    """Whether a model waits for the device."""
    return case in LOOKING or case[0] == "sega-transformer-xl"


class Counted(Toy):
    """A batch on the CPU, whose counts need no wait for a device."""

    def counts(self, batch):
        with torch._C.DisableTorchFunction():
            return super().counts(batch)


@pytest.fixture(params=["adam", "sgd"])
def steps(request, monkeypatch, device_waits, tmp_path, no_kernels):
    """The names of the calls that waited for the device, for each step."""
    found, step = [], Loop.step

    def watched(loop):
        with device_waits() as seen:
            step(loop)
        found.append(seen.found)

    monkeypatch.setattr(Loop, "step", watched)
    chosen = options(max_steps=6, logging_steps=100, validation=ValidationOptions(eval_steps=3))
    object.__setattr__(chosen.optimizer, "name", request.param)
    object.__setattr__(chosen.optimizer, "clip", 1e-3)
    train(Counted(), chosen, tmp_path, progress=False)
    return found


def test_an_update_waits_for_the_device_once(steps):
    assert steps == [["tolist"]] * 6


# ---- models and losses -------------------------------------------------------------------------


@pytest.fixture
def quick_meta():
    with QuickMeta():
        yield


def learn(head, hidden, targets, count):
    loss, counted = head.loss(hidden.flatten(0, 1), targets.flatten(), 0.1, count)
    loss.backward()
    assert counted == count


@pytest.mark.usefixtures("quick_meta")
@pytest.mark.parametrize("case", [c for c in LANGUAGE_MODELS if not looks(c)], ids=name_of)
def test_the_loss_of_a_language_model_does_not_wait_for_the_device(case):
    model = build(case).to("meta").train()
    targets = ids(3, 7)
    targets[1, 5:] = IGNORE
    batch = StreamBatch(ids(3, 7), targets, fresh=True).to("meta")
    learn(model.head, model(batch.tokens, None).hidden, batch.targets, batch.count)
    unread = UNREAD.get(case[0], ())
    assert all(p.grad is not None for n, p in model.named_parameters() if not n.endswith(unread))


def test_counted_masked_positions_do_not_wait_for_the_device():
    encoder = build(("bert", 0))
    head = encoder.new_head("masked_lm").to("meta")
    targets = torch.full((3, 7), IGNORE)
    targets[0, 2] = targets[2, 4] = 5
    hidden = torch.zeros(3, 7, 8, device="meta", requires_grad=True)
    learn(head, hidden, targets.to("meta"), 2)
    assert hidden.grad is not None and hidden.grad.shape == hidden.shape


# ---- batches -----------------------------------------------------------------------------------
