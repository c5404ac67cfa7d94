"""A text that is read in segments has the likelihood of a sequential reading."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from regard.data import ParallelStreams, TokenArray
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.state import State
from regard.tasks import stateful_perplexity
from regard.tasks.stateful_perplexity import stateful_likelihood

WORDS, LENGTH = 40, 8001


@pytest.fixture(scope="module")
def text():
    draw = torch.Generator().manual_seed(7)
    return TokenArray.of([torch.randint(WORDS, (LENGTH,), generator=draw).tolist()], LENGTH)


def model_of(cell, *, init_range=0.2, keep=0.0, gain=0.0):
    """keep: is added to the bias of the forget gate.  gain: of a recurrent matrix that expands."""
    torch.manual_seed(3)
    config = RecurrentConfig(WORDS, cell=cell, d_model=24, init_range=init_range)
    model = RecurrentLanguageModel(config).eval().requires_grad_(False)
    for layer in model.stack.layers:
        if keep:
            layer.input.bias[24:48] += keep
        if gain:
            layer.recurrent.weight.normal_(std=gain / math.sqrt(24))
    return model


def sequential(model, text):
    """In float64, one token at a time."""
    model = model.double()
    total, state = 0.0, None
    for batch in ParallelStreams(text, batch_size=1, sequence_length=500):
        output = model(batch.tokens, state)
        loss, _ = model.head.loss(output.hidden[0], batch.targets[0])
        total, state = total + float(loss), output.state
    model.float()
    return total


@pytest.fixture
def passes(monkeypatch):
    """The number of segments of each reading in segments."""
    found, read = [], stateful_perplexity._read_segments

    def counted(model, text, rows, overlap):
        found.append(rows)
        return read(model, text, rows, overlap)

    monkeypatch.setattr(stateful_perplexity, "_read_segments", counted)
    return found


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_segments_give_the_likelihood_of_a_sequential_reading(cell, text, passes):
    model = model_of(cell)
    found = stateful_likelihood(model, text)
    assert found.count == LENGTH - 1
    assert found.nats == pytest.approx(sequential(model, text), rel=1e-7)
    assert passes == [found.segments] and found.segments >= 8 and found.overlap >= 64


@pytest.mark.parametrize(
    "options",
    [
        dict(cell="lstm", keep=12.0),  # nothing is ever forgotten
        dict(cell="rnn", gain=3.0),  # the slightest difference grows
        dict(cell="lstm", keep=4.5),  # slow
    ],
)
def test_a_model_whose_state_does_not_converge_reads_sequentially(options, text, passes):
    model = model_of(**options)
    found = stateful_likelihood(model, text)
    assert passes == [15, 7] and found.count == LENGTH - 1 and found.segments == 1
    if "gain" not in options:
        assert found.nats == pytest.approx(sequential(model, text), rel=1e-6)


def test_an_overlap_that_is_too_short_is_doubled(text, passes, monkeypatch):
    model = model_of("lstm", keep=1.0)
    monkeypatch.setattr(stateful_perplexity, "FIRST_OVERLAP", 8)
    found = stateful_likelihood(model, text)
    assert len(passes) > 1 and found.count == LENGTH - 1
    assert found.nats == pytest.approx(sequential(model, text), rel=1e-6)


@pytest.mark.parametrize("length", [2, 3, 100, 5000])
def test_texts_are_read_in_segments_only_if_they_are_long(length, passes):
    model = model_of("lstm")
    text = TokenArray.of([[i % WORDS for i in range(length)]], length)
    found = stateful_likelihood(model, text)
    assert found.count == length - 1
    assert found.nats == pytest.approx(sequential(model, text), rel=1e-6)
    assert bool(passes) == (length == 5000)


@dataclass
class Last(State):
    """The last tokens, and how many were read."""

    tokens: torch.Tensor
    read: torch.Tensor
