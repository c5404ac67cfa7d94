"""Masks, gates, importance and pruning of heads: against the formula written out head by head."""

from __future__ import annotations

import json
import math
from threading import Thread

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.attention.multihead import SelfAttention
from regard.attention.pruning import (
    attentions,
    head_importance,
    heads_gated,
    heads_masked,
    prune_heads,
    pruned_heads,
    weakest,
    with_all_heads,
)
from regard.checkpoints.formats import PRUNED, from_published, to_published
from regard.checkpoints.store import write_tensors
from regard.data.batches import Sequences
from regard.decoding.steps import start
from regard.errors import CheckpointError, ConfigError
from regard.models.bert import Bert, BertConfig
from regard.models.encoder_with_heads import EncoderWithHeads
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
@pytest.mark.parametrize("verb", [heads_masked, prune_heads])
def test_layers_heads_or_kinds_that_do_not_exist_raise_an_error(verb, heads, kind, said):
    with pytest.raises(ConfigError, match=said):
        block = verb(bert(), heads, kind)
        block.__enter__()


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


def test_weakest_numbers_heads_from_1_and_skips_pruned_ones():
    scores = torch.tensor([[0.5, math.nan, 0.1], [0.2, 0.3, 0.9]])
    assert weakest(scores, 3) == {1: [3], 2: [1, 2]}
    assert weakest(scores, 0) == {}
    with pytest.raises(ConfigError, match="from 0 to 5"):
        weakest(scores, 6)


# --------------------------------------------------------------------------------- pruning


def test_a_pruned_model_has_smaller_matrices():
    model = bert()
    before = sum(parameter.numel() for parameter in model.parameters())
    prune_heads(model, SOME)
    each = 4 * (4 * 16) + 3 * 4  # rows of query, key and value, columns of the output, biases
    assert before - sum(parameter.numel() for parameter in model.parameters()) == 6 * each
    assert attentions(model)[1].query_key_value.weight.shape == (3 * 2 * 4, 16)
    assert model.config.pruned == (("encoder", 1, (1, 3)), ("encoder", 3, (1, 2, 3, 4)))


def test_steps_of_a_pruned_gpt2_and_transformers_equal_the_masked_model(tmp_path):
    from regard.models.gpt2 import GPT2, GPT2Config

    def gpt2() -> GPT2:
        torch.manual_seed(0)
        return shaken(GPT2(GPT2Config(vocab_size=20, d_model=16, heads=4, layers=3, max_length=9)))

    model, pruned, ids = gpt2(), gpt2(), torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    prune_heads(pruned, SOME)
    with torch.no_grad(), heads_masked(model, SOME):
        masked = model.head.logits(model(ids).hidden)
    with torch.no_grad():
        state, tokens = start(pruned, Sequences.of(ids[:, :3].tolist(), 0))
        scores, state = pruned.step(tokens, state)
        after, _ = pruned.step(ids[:, 3:], state)
    torch.testing.assert_close(torch.cat([scores, after], 1), masked[:, 2:], atol=1e-5, rtol=1e-5)
    transformers = pytest.importorskip("transformers")
    config, tensors = to_published(pruned)
    write_tensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, masked, atol=1e-5, rtol=1e-5)
    again = from_published(json.loads(json.dumps(config)), tensors).eval()
    assert pruned_heads(again) == pruned_heads(pruned)


# ----------------------------------------------------------------------------------- files


def test_published_weights_of_pruned_heads_are_zero_and_pruned_again_when_read():
    model = EncoderWithHeads(bert(), {})
    prune_heads(model, SOME)
    config, tensors = to_published(model)
    config = json.loads(json.dumps(config))
    assert config[PRUNED] == [["encoder", 1, [1, 3]], ["encoder", 3, [1, 2, 3, 4]]]
    assert tensors["encoder.layer.0.attention.self.query.weight"].shape == (16, 16)
    again = from_published(config, tensors).eval()
    assert again.config == model.config
    assert torch.equal(again(TEXTS).hidden, model(TEXTS).hidden)
    whole = from_published({k: v for k, v in config.items() if k != PRUNED}, tensors).eval()
    assert whole.config.pruned == () and attentions(whole)[3].heads == 4
    assert far(whole(TEXTS).hidden, model(TEXTS).hidden) < 1e-6
    assert attentions(with_all_heads(model))[1].remaining_heads == (0, 1, 2, 3)
    assert attentions(model)[1].remaining_heads == (1, 3)


def test_a_list_of_pruned_heads_that_contradicts_the_weights_raises_an_error():
    config, tensors = to_published(EncoderWithHeads(bert(), {}))
    with pytest.raises(CheckpointError, match="head 2 of encoder layer 1 among the pruned ones"):
        from_published(config | {PRUNED: [["encoder", 1, [2]]]}, tensors)
