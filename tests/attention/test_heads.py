"""Masks, gates and importance of heads: against the formula written out head by head."""

from __future__ import annotations

import math
from threading import Thread

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.attention.heads import (
    head_importance,
    heads_gated,
    heads_masked,
    weakest,
)
from regard.attention.multihead import CrossAttention, SelfAttention
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.models.bert import Bert, BertConfig
from regard.models.transformer import Transformer, TransformerConfig

ROWS = [[5, 6, 7, 8, 9], [10, 11, 12], [4]]
TEXTS = Sequences.of(ROWS, 0)
SOME = {1: [1, 3], 3: [1, 2, 3, 4]}  # a layer without any head among them


def shaken(model: nn.Module) -> nn.Module:
    """Large weights and biases: zeros and ones of a fresh model hide mistakes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def bert(**options) -> Bert:
    sizes = dict(vocab_size=20, d_model=16, d_ff=32, heads=4, layers=3, dropout=0.0)
    torch.manual_seed(0)
    return shaken(Bert(BertConfig(**(sizes | options))))


def transformer() -> Transformer:
    config = TransformerConfig(
        vocab_size=20, d_model=16, d_ff=32, heads=4, encoder_layers=2, decoder_layers=3, dropout=0.0
    )
    torch.manual_seed(0)
    return shaken(Transformer(config))


def by_hand(ours: SelfAttention, x: Tensor, gates: Tensor) -> Tensor:
    """sum_h xi_h softmax(q_h k_h / sqrt(d)) v_h W_h + b, in loops (Michel et al. 2019, eq. 1)."""
    width, heads = ours.head_dim, ours.heads
    packed = x @ ours.query_key_value.weight.T + ours.query_key_value.bias
    query, key, value = packed.split(heads * width, -1)
    total = ours.output.bias.expand_as(x).clone()
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        scores = query[..., part] @ key[..., part].transpose(1, 2) / math.sqrt(width)
        context = scores.softmax(-1) @ value[..., part]
        total = total + gates[h] * context @ ours.output.weight[:, part].T
    return total


def far(first: Tensor, second: Tensor) -> float:
    keep = TEXTS.keep[..., None] if first.dim() == 3 else True
    return float(((first - second) * keep).detach().abs().max())


# ---------------------------------------------------------------------------------- gates


@pytest.mark.parametrize("training", [False, True])
def test_gated_attention_and_its_gradients_equal_the_formula(training):
    ours = shaken(SelfAttention(12, 3, kind="encoder")).double().train(training)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    mine, judge = (
        torch.tensor([[0.5, 0.0, 2.0]], dtype=torch.float64, requires_grad=True) for _ in "ab"
    )
    with heads_gated(ours, mine):
        out = ours(x)
    expected = by_hand(ours, x, judge[0])
    torch.testing.assert_close(out, expected)
    out.pow(2).sum().backward()
    expected.pow(2).sum().backward()
    torch.testing.assert_close(mine.grad, judge.grad)


def test_a_head_mask_acts_alike_with_and_without_capture():
    model = bert()
    with torch.no_grad(), heads_masked(model, SOME):
        fast = model.encode(TEXTS)
        with regard.look(model) as attention:
            explicit = model.encode(TEXTS)
    assert far(fast, explicit) < 1e-5
    assert far(fast, model.encode(TEXTS)) > 0.1
    sites = list(attention.passes[0].attentions.values())
    assert not sites[0].weights[:, [0, 2]].any() and sites[0].weights[:, [1, 3]].any()
    assert not sites[2].weights.any()


def test_gates_act_on_a_shared_memory_as_on_copies_of_it():
    ours = shaken(CrossAttention(8, 2))
    hidden, memory = torch.randn(6, 3, 8), torch.randn(2, 4, 8)
    with heads_masked(ours, {1: [2]}):
        shared = ours(hidden, ours.read(memory))
        copies = ours(hidden, ours.read(memory.repeat_interleave(3, 0)))
    torch.testing.assert_close(shared, copies)


def test_a_head_mask_affects_only_its_model_and_thread():
    model, other, found = bert(), bert(), {}
    with torch.no_grad():
        plain = model.encode(TEXTS)

        def elsewhere():
            with torch.no_grad():
                found["thread"] = model.encode(TEXTS)

        with heads_masked(model, SOME):
            found["model"] = other.encode(TEXTS)
            thread = Thread(target=elsewhere)
            thread.start()
            thread.join()
    assert torch.equal(found["thread"], plain) and torch.equal(found["model"], plain)


@pytest.mark.parametrize(
    ("heads", "kind", "said"),
    [
        ({4: [1]}, None, r"layers are 1 to 3, but 4 is named"),
        ({2: [5]}, None, r"layer 2 has heads 1 to 4, but 5 is named"),
        ({2: [0]}, None, r"layer 2 has heads 1 to 4, but 0 is named"),
        ({1: [1]}, "decode", r"Bert has no 'decode' attention. Did you mean 'encoder'"),
    ],
)
def test_layers_heads_or_kinds_that_do_not_exist_raise_an_error(heads, kind, said):
    with pytest.raises(ConfigError, match=said), heads_masked(bert(), heads, kind):
        pass


# ------------------------------------------------------------------------------ importance


def test_head_importance_is_the_mean_absolute_derivative_of_the_loss():
    model = bert().double()

    def losses(texts: Sequences) -> Tensor:
        return model.encode(texts)[:, 0].pow(3).sum(-1)

    found = head_importance(
        model, [TEXTS.select(torch.tensor([0, 1])), TEXTS.select(torch.tensor([2]))], losses,
        normalized=False,
    )  # fmt: skip
    expected, step = torch.zeros(3, 4, dtype=torch.float64), 1e-5
    for layer in range(3):
        for head in range(4):
            gates = torch.ones(3, 4, dtype=torch.float64)
            sides = []
            for moved in (1 + step, 1 - step):
                gates[layer, head] = moved
                with torch.no_grad(), heads_gated(model, gates):
                    sides.append(losses(TEXTS))
            expected[layer, head] = ((sides[0] - sides[1]) / (2 * step)).abs().mean()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    by_layer = head_importance(model, [TEXTS], losses)
    torch.testing.assert_close(by_layer, found / found.norm(dim=1, keepdim=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_head_importance_takes_one_loss_for_each_example():
    model = bert()

    def losses(texts: Sequences) -> Tensor:
        return model.encode(texts)[:, 0].sum(-1).view(-1, 2).pow(2).sum(1)

    four, total = TEXTS.select(torch.tensor([0, 1, 2, 0])), 0.0
    found = head_importance(model, [four], losses, normalized=False)
    for pair in ([0, 1], [2, 3]):
        one = four.select(torch.tensor(pair))
        total = total + head_importance(model, [one], losses, normalized=False)
    torch.testing.assert_close(found, total / 2)
    assert found.min() > 0
    with pytest.raises(ConfigError, match=r"one loss for each example, \(B,\), but gives .* \(\)"):
        head_importance(model, [four], lambda texts: losses(texts).sum())
    with pytest.raises(ConfigError, match="at least one example"):
        head_importance(model, [], losses)


def test_weakest_numbers_heads_from_1():
    scores = torch.tensor([[0.5, 0.7, 0.1], [0.2, 0.3, 0.9]])
    assert weakest(scores, 3) == {1: [3], 2: [1, 2]}
    assert weakest(scores, 0) == {}
    with pytest.raises(ConfigError, match="from 0 to 6"):
        weakest(scores, 7)
