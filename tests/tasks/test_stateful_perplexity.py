"""Read in several places at once, a text is as probable as read in one go."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from regard.data import ParallelStreams, TokenArray
from regard.layers.output import Softmax
from regard.models.protocols import Output
from regard.models.quantize import prepare
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.state import Cells, State
from regard.tasks import stateful_perplexity
from regard.tasks.stateful_perplexity import Forgetting, apart, carried_loss, forgetting

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


def alone(model, text):
    """In float64, one token at a time."""
    model = model.double()
    total, state = 0.0, None
    for batch in ParallelStreams(text, rows=1, steps=500):
        output = model(batch.tokens, state)
        loss, _ = model.head.loss(output.hidden[0], batch.targets[0])
        total, state = total + float(loss), output.state
    model.float()
    return total


@pytest.fixture
def passes(monkeypatch):
    """The rows of each reading side by side."""
    found, read = [], stateful_perplexity._read_together

    def counted(model, columns):
        found.append(columns.rows)
        return read(model, columns)

    monkeypatch.setattr(stateful_perplexity, "_read_together", counted)
    return found


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_side_by_side_is_as_in_one_go(cell, text, passes):
    model = model_of(cell)
    total, count = carried_loss(model, text)
    assert count == LENGTH - 1
    assert total == pytest.approx(alone(model, text), rel=1e-7)
    assert len(passes) == 1 and passes[0] >= 8


@pytest.mark.parametrize(
    "options",
    [
        dict(cell="lstm", keep=12.0),  # nothing is ever forgotten
        dict(cell="rnn", gain=3.0),  # the slightest difference grows
        dict(cell="lstm", keep=4.5),  # slow
    ],
)
def test_who_does_not_forget_reads_alone(options, text, passes):
    model, seen = model_of(**options), []
    model.register_forward_hook(lambda module, given, output: seen.append(given[0].numel()))
    assert forgetting(model, text) is None
    assert sum(seen) < 1.5 * LENGTH  # of a batch, which costs less than one row
    total, count = carried_loss(model, text)
    assert passes == [] and count == LENGTH - 1
    if "gain" not in options:
        assert total == pytest.approx(alone(model, text), rel=1e-6)


def test_a_memory_that_was_thought_forgotten_is_read_for_longer(text, passes, monkeypatch):
    model = model_of("lstm", keep=1.0)
    found = forgetting(model, text)
    assert found.tokens > 32
    monkeypatch.setattr(
        stateful_perplexity, "forgetting", lambda *given: Forgetting(8, found.apart)
    )
    total, count = carried_loss(model, text)
    assert len(passes) > 1 and count == LENGTH - 1
    assert total == pytest.approx(alone(model, text), rel=1e-6)


@pytest.mark.parametrize("length", [2, 3, 100, 5000])
def test_short_texts(length, passes):
    model = model_of("lstm")
    text = TokenArray.of([[i % WORDS for i in range(length)]], length)
    total, count = carried_loss(model, text)
    assert count == length - 1 and total == pytest.approx(alone(model, text), rel=1e-6)
    assert bool(passes) == (length == 5000)


@pytest.mark.usefixtures("some_kernels")
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_narrow_weights(weights, text, passes):
    model = prepare(model_of("lstm"), weights)
    total, count = carried_loss(model, text)
    assert len(passes) == 1 and count == LENGTH - 1
    parts, state = 0.0, None
    for batch in ParallelStreams(text, rows=1, steps=100):
        output = model(batch.tokens, state)
        loss, _ = model.head.loss(output.hidden[0], batch.targets[0])
        parts, state = parts + float(loss), output.state
    assert total == pytest.approx(parts, rel=5e-6)


@dataclass
class Last(State):
    """The last tokens, and how many were read."""

    tokens: torch.Tensor
    read: torch.Tensor


class Window(torch.nn.Module):
    """Remembers four tokens, and nothing of those before; `counts`: but how many they were."""

    def __init__(self, counts):
        super().__init__()
        torch.manual_seed(1)
        self.counts, self.embedding = counts, torch.nn.Embedding(WORDS, 8)
        self.head = Softmax(8, WORDS, tied=None, bias=False)

    def forward(self, ids, state=None):
        rows = ids.size(0)
        if state is None:
            state = Last(torch.zeros(rows, 4, 8), torch.zeros(rows, dtype=torch.long))
        every = torch.cat([state.tokens, self.embedding(ids)], 1)
        hidden = every.unfold(1, 4, 1)[:, 1:].sum(-1)
        read = state.read + ids.size(1) * self.counts
        return Output(hidden, Last(every[:, -4:], read))


@torch.no_grad()
def test_any_memory_that_ends_will_do(text, passes):
    model = Window(counts=False)
    assert forgetting(model, text) == Forgetting(32, 2 * stateful_perplexity.SAME)
    total, _ = carried_loss(model, text)
    assert passes and total == pytest.approx(alone(model, text), rel=1e-7)
    assert forgetting(Window(counts=True), text) is None


def test_how_far_memories_are_apart():
    one = Cells(torch.tensor([[0.5, 3.0], [1.0, -4.0]]), torch.zeros(2, 0))
    other = Cells(torch.tensor([[0.25, 3.0], [1.0, -5.0]]), torch.zeros(2, 0))
    assert apart(one, one) == 0.0
    assert apart(one, other) == 0.25
    assert apart(one.select(torch.tensor([1])), other.select(torch.tensor([1]))) == pytest.approx(
        0.2
    )
    assert apart(one, Cells(one.hidden * math.nan, one.cell)) == math.inf
    assert apart(one, Cells(one.hidden[:, :1], one.cell)) == math.inf
