"""The compiled decoder: steps and whole texts."""

from __future__ import annotations

import os
import signal
import time
import warnings
from contextlib import nullcontext

import pytest
import torch
from random_weights import new_model, spread

import regard
from regard.attention.pruning import heads_masked
from regard.data.batches import Sequences
from regard.decoding.steps import start
from regard.errors import ConfigError
from regard.kernels import compiled_models
from regard.kernels.compiled_models import CompiledGenerator
from regard.kernels.program import Program
from regard.layers.quantized import QuantizedMatrix
from regard.models import conversions
from regard.models.conversions import prepare, quantize_layers
from regard.models.gpt2 import GPT2, GPT2Block, GPT2Config
from regard.models.wrappers import encoder, generator

WORDS = 101
SMALL = dict(d_model=72, heads=6, layers=3, max_length=64)
PAIR = dict(d_model=64, d_ff=128, heads=4, encoder_layers=2, decoder_layers=3)
NARROW = dict(d_model=72, d_ff=100, heads=3, head_dim=20, layers=2, decoder_layers=3)
PROMPTS = [[3, 4, 5], [1], [7, 8, 9, 10, 11, 12]]
SOURCES = [[3, 4, 5, 2], [1, 2], [7, 8, 9, 10, 11, 2]]

# name -> model and options
MODELS = {
    "t5": ("t5", NARROW),
    "t5, gated": (
        "t5", dict(gated=True, activation="gelu-tanh", tied=False, scale_output=False, **NARROW),
    ),
    "t5, pruned": (
        "t5",
        dict(pruned=(("encoder", 1, (2,)), ("decoder", 3, (1,)), ("cross", 2, (3,))), **NARROW),
    ),
    "gpt2": ("gpt2", SMALL),
    "gpt2, scaled by layer": ("gpt2", dict(scaled_by_layer=True, **SMALL)),
    "gpt3": ("gpt3", dict(window=5, **SMALL)),
    "gpt-neo": (
        "gpt-neo", dict(window=2, attention_kinds=("local", "local", "global"), **SMALL),
    ),
    "llama": ("llama", dict(d_ff=100, key_value_heads=2, **SMALL)),
    "llama, one head of keys": (
        "llama",
        dict(
            d_model=72, d_ff=64, heads=5, key_value_heads=1, head_dim=32, layers=2,
            rope_theta=50.0, attention_bias=True, feed_bias=True,
        ),
    ),
    "gpt": ("gpt", SMALL),
    "gpt, pruned": ("gpt", dict(pruned=(("decoder", 2, (1, 5)),), **SMALL)),
    "transformer": ("transformer", PAIR),
    "pre-norm": ("transformer-prenorm", PAIR),
    "transformer, pruned": (
        "transformer", dict(pruned=(("cross", 1, (2,)), ("decoder", 3, (1, 4))), **PAIR),
    ),
    "transformer, unequal": (
        "transformer", dict(decoder_heads=8, decoder_d_ff=64, output_bias=True, **PAIR),
    ),
    "bart": ("bart", dict(output_bias=True, max_length=64, **PAIR)),
    "mbart": ("mbart", dict(scale_embedding=True, max_length=64, **PAIR)),
    "m2m-100": ("m2m-100", PAIR),
}  # fmt: skip


def built(name):
    kind, options = MODELS[name]
    return spread(new_model(kind, WORDS, **options))


def inputs(model) -> Sequences:
    return Sequences.of(PROMPTS if getattr(model, "continues", False) else SOURCES, 0)


@pytest.fixture
def runs(monkeypatch):
    """The width of the result of each program that ran; the comparison of first steps is off."""
    calls = []
    monkeypatch.setattr(CompiledGenerator, "_agrees", lambda *asked: True)
    monkeypatch.setattr(CompiledGenerator, "_cache_agrees", lambda *asked, gives: True)

    def listen(name):
        run = getattr(Program, name)

        def counted(program, *arguments):
            calls.append(program.width)
            return run(program, *arguments)

        monkeypatch.setattr(Program, name, counted)

    for name in ("_run", "search"):
        listen(name)
    return calls


def compiled(model):
    """The generator of a quantized model; it has the same cache without kernels."""
    quantized = any(isinstance(part, QuantizedMatrix) for part in model.modules())
    return CompiledGenerator(model) if quantized else model


def scores(model, source, counts=(1,) * 12):
    """Scores of steps of so many tokens; the tokens do not depend on the scores."""
    found, model = [], compiled(model)
    with torch.no_grad():
        state, tokens = start(model, source)
        for step, count in enumerate(counts):
            fed = (tokens * 7 + 5 * torch.arange(count) + 3 * step) % WORDS
            step_scores, state = model.step(fed, state)
            found.append(step_scores)
    return torch.cat(found, 1)


def calls(model, steps):
    """The expected number of calls of programs in so many steps; a prompt takes one more."""
    return steps + getattr(model, "continues", False)


def assert_close(found, wanted):
    """Sums in another order differ in the last digits. A number that is half way between two steps
    of a quantized kind may then go the other way: rarely, and by one step.
    """
    difference, size = (found - wanted).abs(), wanted.abs().max()
    assert difference.max() < 2e-2 * size
    # Over steps, the worst word.
    assert difference.flatten(0, 1).amax(1).median() < 5e-3 * size


@pytest.mark.parametrize(
    "name, weights",
    [
        *((name, "int8") for name in MODELS),
        *((name, "bfloat16") for name in ("gpt2", "t5", "bart")),
    ],
)
def test_compiled_steps_give_the_scores_of_the_plain_model(use, runs, name, weights):
    model = built(name)
    wide = scores(model, inputs(model))
    prepare(model, weights)
    use(None)
    wanted = scores(model, inputs(model))
    assert not runs
    for kind in ("fast", "older", "plain"):
        use(kind)
        runs.clear()
        found = scores(model, inputs(model))
        assert len(runs) == calls(model, 12)
        assert_close(found, wanted)
    error = (wanted - wide).pow(2).mean().sqrt() / wide.std()
    factor = 2 if name == "t5, gated" else 1  # gates are products of rounded numbers
    assert error < factor * (0.05 if weights == "int8" else 0.02)


@pytest.mark.parametrize("kind", ["fast", "plain", None])
@pytest.mark.parametrize("name", ["gpt2", "gpt, pruned", "gpt3", "gpt-neo", "llama"])
def test_prefill_gives_the_state_of_a_full_forward_pass(use, name, kind):
    use(kind)
    model = prepare(built(name)) if kind else built(name)
    model, ids = generator(model), torch.randint(WORDS, (2, 40))
    with torch.no_grad():
        found, wanted = model.prefill(ids, model.empty(2)), model(ids, model.empty(2)).state
    assert found.longest == wanted.longest == 40
    for one, other in ((found.keys, wanted.keys), (found.values, wanted.values)):
        assert one[:, :, :, :40].any() and torch.equal(one[:, :, :, :40], other[:, :, :, :40])


def test_a_forked_process_computes_without_the_threads_of_its_parent(use, monkeypatch):
    use("fast")
    model = prepare(built("gpt2"))
    monkeypatch.setattr("regard.kernels.program.threads_for", lambda *work: 2)
    wanted = scores(model, inputs(model))
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # torch's own operations would wait
        os._exit(0 if torch.equal(scores(model, inputs(model)), wanted) else 1)
    for _ in range(1000):
        if (ended := os.waitpid(child, os.WNOHANG))[0]:
            break
        time.sleep(0.01)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)


def test_capture_and_head_masks_use_the_plain_step(use, runs):
    use("fast")
    model = prepare(built("gpt2"), "bfloat16")
    plain = scores(model, inputs(model), (1, 1, 1))
    assert len(runs) == 4
    with regard.look(model) as attention:
        looked = scores(model, inputs(model), (1, 1, 1))
    assert len(runs) == 4  # the explicit path
    assert_close(looked, plain)
    pieces = [piece for site in attention.passes[0].attentions.values() for piece in site.parts]
    assert len(attention.passes[0].attentions) == 3 and {piece.size(1) for piece in pieces} == {6}
    assert all(torch.allclose(piece.sum(-1), torch.ones(())) for piece in pieces)
    with heads_masked(model, {1: [1, 2]}):
        masked = scores(model, inputs(model), (1, 1, 1))
    assert len(runs) == 4 and not torch.allclose(masked, plain, atol=1e-2)


class Halves(GPT2Block):
    """A layer without a compiled form."""

    def forward(self, hidden, mask, **options):
        return super().forward(hidden, mask, **options) / 2


class Sums(GPT2Block):
    """A model with a sum that the compiled form does not have."""

    def forward(self, hidden, mask, **options):
        fed = self.feed(hidden)
        hidden = hidden + self.attention(self.attention_norm(hidden + fed), mask, **options)
        return fed + hidden + fed


@pytest.mark.parametrize(("block", "steps"), [(Halves, 0), (Sums, 13)])
def test_blocks_of_a_user_are_compiled_or_run_as_they_are(use, runs, block, steps):
    class Own(GPT2):
        pass

    Own.block = block
    model = prepare(spread(Own(GPT2Config(WORDS, **SMALL))), "bfloat16")
    use("fast")
    with nullcontext() if steps else pytest.warns(UserWarning, match="test_compiled_decoder.py:"):
        found = scores(model, inputs(model))
    assert len(runs) == steps
    use(None)
    wanted = scores(model, inputs(model))
    assert_close(found, wanted)


def test_tokens_and_positions_out_of_range_raise_errors(use):
    use("fast")
    model = prepare(built("gpt2"))
    model = generator(model)
    for wrong in (-1, WORDS):
        state, _ = start(model, inputs(model))
        with pytest.raises(IndexError):
            model.step(torch.tensor([[1], [wrong], [2]]), state)
    state, tokens = start(model, Sequences.of([[3]], 0))
    with pytest.raises(ValueError, match="65"):
        for _ in range(SMALL["max_length"] + 1):
            _, state = model.step(tokens, state)


@pytest.mark.parametrize("name", ["gpt2", "transformer", "t5"])
def test_a_compiled_model_uses_newly_assigned_weights(use, runs, name):
    use("fast")
    model, other = (prepare(built(name)) for _ in range(2))
    scores(model, inputs(model))
    state = other.state_dict()
    others = {key: 2 * x if x.dtype == torch.float32 else x for key, x in state.items()}
    model.load_state_dict(others, assign=True)
    found = scores(model, inputs(model))
    other.load_state_dict(others)
    assert torch.equal(found, scores(other, inputs(other)))
    assert runs[-1] == WORDS


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "transformer"])
def test_on_a_gpu_bfloat16_weights_use_torch(monkeypatch, name):
    monkeypatch.setattr(conversions, "GPUS", {"meta"})
    model = prepare(built(name).to("meta"), "bfloat16")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    with pytest.raises(ConfigError, match="int8 weights are for the CPU"):
        prepare(model, "int8")
    wide = built(name)
    wanted = scores(wide, inputs(wide))
    found = scores(conversions.halved(wide), inputs(wide)).float()
    error = (found - wanted).pow(2).mean().sqrt() / wanted.std()
    assert error < 0.05


def test_on_a_gpu_recurrent_models_keep_float32_with_a_warning():
    model = new_model("lstm-lm", WORDS, d_model=16)
    with pytest.warns(UserWarning, match="keeps its float32 weights"):
        conversions.halved(model)
    assert model.embedding.weight.dtype == torch.float32


def test_a_compiled_step_that_differs_from_the_plain_one_is_not_used(use, monkeypatch):
    use("fast")
    model = prepare(built("gpt2"))
    monkeypatch.setattr("regard.kernels.compiled_models.agree", lambda *given: False)
    with pytest.warns(UserWarning, match="does not agree with the model") as told:
        found = scores(model, inputs(model))
    assert len(told) == 2  # of the prompt and of the steps
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is told once
        assert torch.equal(scores(model, inputs(model)), found)


def test_compiling_leaves_the_modules_of_the_model_unchanged(use):
    use("fast")
    model = prepare(built("gpt2"))
    before = {name: type(part) for name, part in model.named_modules()}
    scores(model, inputs(model))
    assert {name: type(part) for name, part in model.named_modules()} == before
    assert "step" not in vars(model) and isinstance(generator(model), CompiledGenerator)


def texts(*lengths):
    draw = torch.Generator().manual_seed(5)
    return Sequences.of([torch.randint(WORDS, (n,), generator=draw).tolist() for n in lengths], 0)


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
@pytest.mark.parametrize("name", ["gpt", "gpt2, scaled by layer", "gpt, pruned"])
@pytest.mark.parametrize("most", [1, 100, 512])
@torch.no_grad()
def test_compiled_states_of_whole_texts_equal_those_of_the_model(
    use, monkeypatch, name, weights, most
):
    use("fast")
    model = quantize_layers(built(name), weights)
    monkeypatch.setattr(compiled_models, "MAX_TOKENS", most)
    for batch in (texts(60, 3, 41, 1), texts(1), texts(9, 9)):
        found, wanted = generator(model)(batch.ids).hidden, model(batch.ids).hidden
        encoded = encoder(model).encode(batch)
        assert torch.equal(encoded, found)
        assert (found - wanted)[batch.keep].abs().max() < 0.05 * wanted.abs().max()
        likeness = torch.cosine_similarity(found, wanted, dim=-1)[batch.keep]
        assert likeness.min() > 0.9995
