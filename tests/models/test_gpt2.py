"""GPT-2: its four sizes, and its initial weights."""

from __future__ import annotations

import math

import pytest
import torch
from random_weights import randomized

import regard
from regard.checkpoints.formats import to_published
from regard.data.batches import Sequences
from regard.decoding.steps import start
from regard.errors import ConfigError
from regard.models.adaptive_transformer import AdaptiveTransformer, AdaptiveTransformerConfig
from regard.models.gpt2 import GPT, GPT2, GPT2Config
from regard.models.gpt3 import GPT3, GPTNeo
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel


def test_matrices_before_the_residual_sum_have_smaller_initial_weights():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=500, d_model=128, heads=4, layers=8, output="own")
    model = GPT2(config)
    small = 0.02 / math.sqrt(16)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            wanted = small if name.endswith(("attention.output.weight", "outer.weight")) else 0.02
            assert float(parameter.detach().std()) == pytest.approx(wanted, rel=0.05), name
        elif "norm" in name and name.endswith("weight"):
            assert (parameter == 1).all()
        else:
            assert (parameter == 0).all(), name


# ---- gpt

TINY = dict(d_model=8, heads=2, layers=2, max_length=6)


def tiny(**options):
    torch.manual_seed(0)
    return GPT(GPT.Config(vocab_size=11, **(TINY | options))).eval()


@pytest.mark.parametrize("kind", [GPT, GPT2])
@pytest.mark.parametrize("ids, first", [((1, 2), 1), ((None, 2), 2)])
def test_an_empty_prompt_starts_with_bos_or_eos(kind, ids, first):
    config = kind.Config(vocab_size=11, bos=ids[0], eos=ids[1], **TINY)
    model = kind(config).eval()
    _, tokens = start(model, None)
    assert tokens.tolist() == [[first]]
    state, tokens = start(model, Sequences.of([[], [5, 6], []], None))
    assert tokens.tolist() == [[first], [6], [first]]
    scores, _ = model.step(tokens, state)
    whole = model.head.logits(model(torch.tensor([[5, 6]])).hidden)
    torch.testing.assert_close(scores[1, 0], whole[0, 1])
    alone = model.head.logits(model(torch.tensor([[first]])).hidden)
    torch.testing.assert_close(scores[[0, 2], 0], alone[:, 0].repeat(2, 1))


def test_empty_prompts_without_bos_raise_errors():
    with pytest.raises(ConfigError, match="An empty prompt needs a token .* of at least one word"):
        start(tiny(), None)
    with pytest.raises(ConfigError, match="An empty prompt needs a token"):
        start(tiny(bos=50256), None)


# ---- gpt3


def model_of(kind=GPT3, **options):
    torch.manual_seed(0)
    sizes = dict(d_model=8, heads=2, layers=4, max_length=80, window=4) | options
    return randomized(kind(kind.Config(19, bos=1, eos=2, **sizes))).double().eval()


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, 19, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", [GPT3, GPTNeo])
@pytest.mark.parametrize("length", [9, 70])
def test_captured_weights_are_those_of_dense_and_of_local_layers_in_turn(kind, length):
    model = model_of(kind)
    texts = Sequences.full(ids(2, length))
    with torch.no_grad(), regard.look(model) as attention:
        shown = model.encode(texts)
    with torch.no_grad():
        torch.testing.assert_close(shown, model.encode(texts), atol=1e-10, rtol=0)
    rows = torch.arange(length)
    causal = rows <= rows[:, None]
    local = causal & (rows > rows[:, None] - 4)
    layers = list(attention.passes[-1].attentions.values())
    assert len(layers) == 4
    for layer, allowed in zip(layers, (causal, local, causal, local), strict=True):
        (weights,) = layer.parts
        assert torch.equal(weights > 0, allowed.expand(2, 2, length, length))


# ---- adaptive transformer

SIZES = dict(vocab_size=30, d_model=16, heads=2, layers=2, d_ff=24, max_length=20)


def test_with_one_cluster_it_is_gpt2_with_a_scaled_embedding():
    torch.manual_seed(0)
    model = AdaptiveTransformer(AdaptiveTransformerConfig(**SIZES, divisor=1)).double().eval()
    plain = GPT2(GPT2Config(**SIZES, positions="sinusoidal", activation="relu", output="own"))
    plain = plain.double().eval()
    weights = model.state_dict()
    words = weights.pop("embedding.tables.0.weight")
    others = {name: one for name, one in weights.items() if not name.startswith("head.")}
    plain.load_state_dict({**others, "embedding.weight": words * 4, "head.weight": words})
    ids = torch.randint(0, 30, (3, 11))
    found, expected = (one.head.logits(one(ids).hidden) for one in (model, plain))
    torch.testing.assert_close(found, expected.log_softmax(-1))


def test_inputs_and_outputs_share_matrices_and_projections():
    config = AdaptiveTransformerConfig(**SIZES, cutoffs=(5, 12), divisor=2)
    model = AdaptiveTransformer(config)
    assert [table.weight.shape for table in model.embedding.tables] == [(5, 16), (7, 8), (18, 4)]
    for mine, theirs in (
        (model.head.weights, [table.weight for table in model.embedding.tables]),
        (model.head.projections, model.embedding.projections),
    ):
        assert all(one is other for one, other in zip(mine, theirs, strict=True))
    assert to_published(model) is None


def test_the_printed_size_is_that_of_the_papers_cut_offs():
    with torch.device("meta"):
        config = AdaptiveTransformerConfig(267_744, cutoffs=(20_000, 60_000))
        model = AdaptiveTransformer(config)
    assert sum(one.numel() for one in model.parameters()) == 247_203_298  # 247M


# ---- recurrent

WORDS = 13


def recurrent(cell="lstm", **options):
    torch.manual_seed(0)
    config = RecurrentConfig(WORDS, cell=cell, d_model=8, layers=2, init_range=0.5, **options)
    return RecurrentLanguageModel(config).eval()


@pytest.mark.parametrize("prompt", [None, Sequences.of([[]], pad=0)])
def test_an_empty_prompt_starts_with_eos_and_a_zero_state(prompt):
    model = recurrent()
    state, tokens = start(model, prompt)
    assert tokens.tolist() == [[model.config.eos]]
    assert state.rows == 1 and not state.hidden.any() and not state.cell.any()
