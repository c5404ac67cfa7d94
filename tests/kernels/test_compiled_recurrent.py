"""Quantized recurrent layers: kernels against torch, and both against float32 weights."""

from __future__ import annotations

import pytest
import torch
from random_weights import new_model

import regard
from regard.data.batches import Sequences
from regard.decoding.beam import Beam
from regard.decoding.steps import start
from regard.kernels.compiled_models import CompiledGenerator
from regard.kernels.program import Program
from regard.layers.quantized import QuantizedRecurrent
from regard.layers.recurrent import CELLS
from regard.models.conversions import prepare
from regard.models.wrappers import generator

WORDS, WIDTH = 101, 72
PROMPTS = [[3, 4, 5], [1], [7, 8, 9, 10, 11, 12]]

MODELS = {
    **{cell: ("lstm-lm", dict(cell=cell, d_model=WIDTH, tied=True)) for cell in CELLS},
    **{
        f"seq2seq, {kind}": ("lstm-seq2seq", dict(d_model=WIDTH, layers=2, attention=kind))
        for kind in ("none", "additive", "dot", "scaled-dot", "general")
    },
}


def made(name):
    """Weights so large that the answers of a model differ from word to word."""
    torch.manual_seed(1)
    kind, options = MODELS[name]
    model = new_model(kind, WORDS, **options)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.12)
    return model.eval()


def scores(model, counts=(1, 1, 4, 1)):
    """Scores of steps of so many tokens; the tokens do not depend on the scores."""
    found, model = [], generator(model)
    with torch.no_grad():
        state, tokens = start(model, Sequences.of(PROMPTS, 0))
        for step, count in enumerate(counts):
            fed = (tokens * 7 + 5 * torch.arange(count) + 3 * step) % WORDS
            step_scores, state = model.step(fed, state)
            found.append(step_scores)
    return torch.cat(found, 1)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
def test_quantized_layers_are_close_to_float32_ones(use, monkeypatch, kind, weights, threads):
    monkeypatch.setattr("regard.kernels.products.threads_for", lambda *work: threads)
    torch.manual_seed(0)
    layer = CELLS[kind](40, WIDTH)
    x = torch.randn(3, 5, 40)
    state = [torch.randn(2 * part.size(0), part.size(1))[::2] for part in layer.empty(3, x)]
    with torch.no_grad():
        wide, (hidden, cell) = layer(x, *state)
        quantized = QuantizedRecurrent(layer, weights)
        for library in (None, "fast", "older", "plain"):
            use(library)
            found, (last, end) = quantized(x, *state)
            assert torch.allclose(found, wide, atol=0.03)
            assert torch.allclose(end, cell, atol=0.03) and torch.equal(last, found[:, -1])
            assert quantized(x[:, :0], *state)[0].shape == (3, 0, WIDTH)
        assert not torch.equal(found, wide)


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_kernels_give_the_scores_of_torch(use, name, weights):
    model = made(name)
    wide = scores(model)
    prepare(model, weights)
    use(None)
    wanted = scores(model)
    for kind in ("fast", "plain"):
        use(kind)
        found = scores(model)
        # Where a number is half way between two steps it may go either way.
        assert (found - wanted).abs().max() < 0.05 * wanted.abs().max()
        assert (found - wanted).abs().median() < 2e-3 * wanted.abs().max()
    error = (wanted - wide).pow(2).mean().sqrt() / wide.std()
    assert error < (0.06 if weights == "int8" else 0.02)


@pytest.fixture
def steps(monkeypatch):
    """One entry for each call of a compiled step; the comparison of first steps is off."""
    calls = []
    monkeypatch.setattr(CompiledGenerator, "_agrees", lambda *asked: True)
    run = Program.step

    def counted(*arguments):
        calls.append(run)
        return run(*arguments)

    monkeypatch.setattr(Program, "step", counted)
    return calls


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_one_call_unless_attention_is_additive(use, steps, name):
    use("fast")
    model = prepare(made(name), "bfloat16")
    scores(model)
    assert len(steps) == (0 if "additive" in name else 3)  # one of the four has several tokens
    steps.clear()
    found = Beam(size=3, max_tokens=4).run(generator(model), Sequences.of(PROMPTS, 0))
    assert len(steps) >= (0 if "additive" in name else 2)
    use(None)
    wanted = Beam(size=3, max_tokens=4).run(generator(model), Sequences.of(PROMPTS, 0))
    assert [each[0].tokens for each in found] == [each[0].tokens for each in wanted]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", ["lstm", "gru", "seq2seq, general"])
def test_states_of_compiled_and_plain_steps_are_interchangeable(use, name, size):
    """Each step gives the same scores, whether or not kernels made the steps before it."""
    model = prepare(made(name), "bfloat16")
    state, tokens = start(model, Sequences.of(PROMPTS, 0))
    rows = torch.arange(3).repeat_interleave(size)
    state, tokens = state.select(rows), tokens[rows]
    with torch.no_grad():
        for kind in ("fast", None, "plain", "fast"):
            use(None)
            wanted, after = model.step(tokens, state.copy())
            use(kind)
            found, state = generator(model).step(tokens, state)
            assert type(state) is type(after)
            for key, part in after.tensors().items():
                assert torch.allclose(state.tensors()[key], part, atol=0.02)
            assert (found - wanted).abs().max() < 0.05 * wanted.abs().max()
            tokens = (tokens * 5 + 3) % WORDS


def test_capture_uses_the_plain_step_and_wrong_tokens_raise_an_error(use, steps):
    use("fast")
    model = prepare(made("seq2seq, dot"), "bfloat16")
    state, tokens = start(model, Sequences.of(PROMPTS, 0))
    compiled = generator(model)
    whole, _ = compiled.step(tokens, state.copy())
    steps.clear()
    with regard.look(model) as attention:
        looked, _ = compiled.step(tokens, state.copy())
    assert not steps and attention.passes
    assert (looked - whole).abs().max() < 0.05 * whole.abs().max()
    with pytest.raises(IndexError):
        compiled.step(tokens + WORDS, state)
