"""Compiled encoders against torch with the same weights, and batches against single texts."""

from __future__ import annotations

import pytest
import torch
from random_weights import new_model, spread

import regard
from regard.attention.pruning import heads_masked
from regard.data.batches import Sequences
from regard.kernels.compiled_models import CompiledEncoder, CompiledTexts, TextProgram
from regard.layers.pooling import choice_of
from regard.layers.quantized import QuantizedMatrix
from regard.models.conversions import prepare
from regard.models.protocols import CrossAttentionModel

# A model that is not compiled, or whose compiled form disagrees, computes the same more slowly.
pytestmark = pytest.mark.filterwarnings("error:.* is not compiled")

WORDS = 101
SMALL = dict(d_model=72, d_ff=96, heads=6, layers=3, max_length=300)  # heads of 12
WIDE = dict(d_model=128, d_ff=80, heads=2, layers=2, max_length=300)  # heads of 64
PAIR = dict(d_model=64, d_ff=128, heads=4, encoder_layers=3, decoder_layers=1)
LENGTHS = (3, 17, 1, 16, 250, 8, 40, 33, 64)

T5_SIZES = dict(d_model=72, d_ff=96, heads=5, head_dim=20, layers=3)

# name -> model and options
MODELS = {
    "t5": ("t5", dict(decoder_layers=1, **T5_SIZES)),
    "t5 encoder": (
        "t5-encoder", dict(gated=True, activation="gelu-tanh", max_distance=20, **T5_SIZES),
    ),
    "umt5 encoder, pruned": (
        "t5-encoder", dict(bias_per_layer=True, pruned=(("encoder", 2, (1, 4)),), **T5_SIZES),
    ),
    "bert": ("bert", SMALL),
    "bert, wide heads": ("bert", WIDE),
    "bert, pruned": ("bert", dict(pruned=(("encoder", 2, (1, 5)),), **SMALL)),
    "bert, relu": ("bert", dict(activation="relu", **SMALL)),
    "roberta": ("roberta", SMALL),
    "roberta, wide heads": ("roberta", WIDE),
    "distilbert": ("distilbert", SMALL),
    "transformer": ("transformer", PAIR),
    "pre-norm": ("transformer-prenorm", PAIR),
}  # fmt: skip

# The program of a model is the same for both types of weights, and their products are one call.
WEIGHTS = [*((name, "int8") for name in MODELS), ("bert", "bfloat16"), ("t5 encoder", "bfloat16")]


def made(name):
    kind, options = MODELS[name]
    return spread(new_model(kind, WORDS, **options)).requires_grad_(False)


def texts(lengths=LENGTHS) -> Sequences:
    torch.manual_seed(2)
    return Sequences.of([torch.randint(3, WORDS, (n,)).tolist() for n in lengths], 0)


def encode(model, read) -> torch.Tensor:
    """By the compiled form where there is one, else by the model's own code."""
    found = None
    if any(isinstance(part, QuantizedMatrix) for part in model.modules()):
        whole = isinstance(model, CrossAttentionModel)
        texts = CompiledTexts(model, "encode").states if whole else CompiledEncoder(model).encode
        found = texts(read)
    return model.encode(read) if found is None else found


@pytest.fixture
def runs(monkeypatch):
    """One entry for each program that ran; the first comparison is off."""
    calls, run = [], TextProgram.encode
    monkeypatch.setattr(CompiledTexts, "_agrees", lambda *asked: True)

    def counted(*arguments):
        calls.append(1)
        return run(*arguments)

    monkeypatch.setattr(TextProgram, "encode", counted)
    return calls


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name, weights", WEIGHTS)
def test_compiled_encoders_give_the_states_of_the_plain_model(use, runs, name, weights):
    read, keep = texts(), texts().keep
    model = made(name)
    wide = encode(model, read)[keep]
    prepare(model, weights)
    use(None)
    wanted = encode(model, read)[keep]
    assert not runs
    for kind in ("fast", "older", "plain"):
        use(kind)
        runs.clear()
        found = encode(model, read)[keep]
        assert len(runs) == 1
        difference, size = (found - wanted).abs(), wanted.abs().max()
        # A number half way between two steps may go the other way.
        assert difference.max() < 0.1 * size
        assert difference.median() < 5e-3 * size
    bound = 0.1 if name == "t5 encoder" else 0.05  # gates are products of rounded numbers
    assert (wanted - wide).pow(2).mean().sqrt() < bound * wide.std()


@pytest.mark.parametrize("name, weights", WEIGHTS)
def test_the_states_of_a_text_do_not_depend_on_the_batch(two_threads, name, weights):
    model = prepare(made(name), weights)
    read = texts()
    together = encode(model, read)
    for i, length in enumerate(LENGTHS):
        alone = encode(model, Sequences(read.ids[i : i + 1, :length], read.lengths[i : i + 1]))
        torch.testing.assert_close(together[i : i + 1, :length], alone, rtol=0, atol=0)
        assert not together[i, length:].any() or "norm" in name  # which is behind the blocks


@pytest.mark.parametrize("name", ["bert", "roberta"])
@pytest.mark.parametrize("ids, message", [([5] * 301, "301"), ([5, WORDS], "index")])
def test_ids_out_of_range_raise_the_same_error_as_without_kernels(name, ids, message):
    model = prepare(made(name))
    with pytest.raises((ValueError, IndexError), match=message):
        encode(model, Sequences.of([ids], 0))


@pytest.mark.parametrize("choice", [(-1,), ([1, 2], "sum")])
def test_the_last_layer_is_compiled_and_others_are_the_models_own(use, runs, choice):
    model, read = prepare(made("bert"), "bfloat16"), texts()
    use("fast")
    features = CompiledEncoder(model).chosen(read, choice_of(*choice))
    assert len(runs) == (choice == (-1,))
    expected = model.chosen(read, choice_of(*choice))
    torch.testing.assert_close(features, expected, rtol=0, atol=3e-2)


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
@pytest.mark.parametrize("name", ["distilbert", "bert, wide heads", "roberta, wide heads"])
def test_the_last_layer_computes_only_the_first_tokens(
    use, runs, two_threads, monkeypatch, name, weights
):
    model, read = prepare(made(name), weights), texts()
    width, flat, given = model.config.d_model, [], TextProgram.encode
    monkeypatch.setattr(
        TextProgram, "encode", lambda *asked: flat.append(given(*asked)) or flat[-1]
    )
    # New memory holds NaN, so that a row that nothing writes cannot equal an earlier result.
    empty = torch.empty
    monkeypatch.setattr(
        torch,
        "empty",
        lambda *size, **more: (
            new.fill_(torch.nan) if (new := empty(*size, **more)).is_floating_point() else new
        ),
    )
    for kind in ("fast", "older", "plain"):
        use(kind)
        runs.clear()
        found = CompiledEncoder(model).encode(read, read.first_tokens())
        assert found.shape == (len(LENGTHS), 1, width) and runs == [True]
        torch.testing.assert_close(found, encode(model, read)[:, :1], rtol=0, atol=0)
        some, all_tokens = flat[-2:]
        is_first = torch.zeros(len(some), dtype=torch.bool)
        is_first[read.lengths.cumsum(0) - read.lengths] = True
        assert (some[~is_first] != all_tokens[~is_first]).any(-1).all()


def test_capture_head_masks_and_training_use_the_plain_model(runs):
    model, read = prepare(made("bert"), "bfloat16"), texts()
    fast = encode(model, read)[read.keep]
    runs.clear()
    with heads_masked(model, {1: [2]}):
        masked = encode(model, read)[read.keep]
    with regard.look(model) as attention:
        looked_at = encode(model, read)[read.keep]
    model.train()
    encode(model, read)
    assert not runs and len(attention.passes) == 1
    torch.testing.assert_close(looked_at, fast, rtol=0, atol=3e-2)
    assert (masked - fast).abs().max() > 0.1
