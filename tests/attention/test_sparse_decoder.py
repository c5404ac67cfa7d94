"""GPT-2 and the Transformer's decoder with sparse attention as a part."""

from __future__ import annotations

import pytest
import torch

from regard import ops
from regard.attention.multihead import SelfAttention
from regard.attention.sparse_decoder import CausalBlocks, SparseSelfAttention
from regard.data.batches import Sequences
from regard.decoding import generate
from regard.decoding.start import start
from regard.models.gpt2 import GPT2
from regard.models.transformer import Transformer, TransformerConfig
from regard.ops import KeyMask

PATTERN = CausalBlocks(2, window=1, random=1, seed=3)


class SparseBlock(GPT2.block):
    def __init__(self, config, layer: int):
        super().__init__(config, layer)
        self.attention = SparseSelfAttention(
            config.d_model, config.heads, kind="decoder", dropout=config.attention_dropout,
            pattern=PATTERN,
        )  # fmt: skip


class SparseGPT2(GPT2):
    block = SparseBlock


def gpt2() -> SparseGPT2:
    torch.manual_seed(0)
    model = SparseGPT2(GPT2.Config(19, d_model=8, heads=2, layers=2, max_length=64, bos=1, eos=2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def ids(rows: int, count: int) -> torch.Tensor:
    return torch.randint(3, 19, (rows, count), generator=torch.Generator().manual_seed(1))


def dense(length: int) -> KeyMask:
    return PATTERN.mask(length).resolve(length, length)


@pytest.mark.parametrize("length", [1, 2, 7, 21, 32])
def test_the_part_equals_dense_attention_under_its_mask_forward_and_backward(length):
    torch.manual_seed(0)
    sparse = SparseSelfAttention(8, 2, kind="decoder", pattern=PATTERN)
    plain = SelfAttention(8, 2, kind="decoder")
    plain.load_state_dict(sparse.state_dict())
    hidden, results = torch.randn(3, length, 8), []
    for one, mask in ((sparse, KeyMask.causal(length)), (plain, dense(length))):
        given = hidden.clone().requires_grad_()
        found = one(given, mask)
        found.square().sum().backward()
        results.append([found.detach(), given.grad, *(p.grad for p in one.parameters())])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="the mask of a padded batch"):
        sparse(hidden, KeyMask())


def test_steps_equal_the_full_pass_and_no_token_sees_a_later_one():
    model, target = gpt2(), ids(3, 33)
    whole = model.head.logits(model(target).hidden)
    for at in (5, 20):
        changed = target.clone()
        changed[:, at] = 3 + (changed[:, at] - 2) % 16
        after = model.head.logits(model(changed).hidden)
        torch.testing.assert_close(after[:, :at], whole[:, :at])
    for pieces in ([1] * 33, [20, 1, 12], [7, 26]):
        state, said, at = model.empty(3), [], 0
        for count in pieces:
            scores, state = model.step(target[:, at : at + count], state)
            said.append(scores)
            at += count
        torch.testing.assert_close(torch.cat(said, 1), whole, atol=1e-5, rtol=1e-5)
    full = GPT2(model.config).eval()
    full.load_state_dict(model.state_dict())
    assert (full.head.logits(full(target).hidden) - whole).abs().max() > 1e-2


def test_prompts_of_different_lengths_continue_as_each_alone():
    model, prompts = gpt2(), [[1, *range(3, 18)], [1, 5], [1, 6, 7, 8, 9, 10, 11]]
    state, first = start(model, Sequences.of(prompts, 0))
    following = torch.cat([first, ids(3, 6)], 1)
    scores, _ = model.step(following, state)
    for row, prompt in enumerate(prompts):
        whole = torch.tensor([[*prompt, *following[row, 1:].tolist()]])
        expected = model.head.logits(model(whole).hidden)[0, len(prompt) - 1 :]
        torch.testing.assert_close(scores[row], expected, atol=1e-5, rtol=1e-5)
    together = generate(model, Sequences.of(prompts, 0), beams=3, max_tokens=6)
    for row, prompt in enumerate(prompts):
        alone = generate(model, Sequences.of([prompt], 0), beams=3, max_tokens=6)
        assert together[row][0].tokens == alone[0][0].tokens


def test_a_decoder_of_the_transformer_takes_the_part():
    torch.manual_seed(0)
    config = TransformerConfig(
        19, d_model=8, d_ff=12, heads=2, encoder_layers=1, decoder_layers=2, pad=0, bos=1, eos=2
    )
    model = Transformer(config).eval()
    for block in model.decoder:
        sparse = SparseSelfAttention(8, 2, kind="decoder", pattern=PATTERN)
        sparse.load_state_dict(block.attention.state_dict())
        block.attention = sparse
    source, target = Sequences.full(ids(2, 5)), ids(2, 18)
    whole = model.head.logits(model(source, Sequences.full(target)).hidden).log_softmax(-1)
    state, said = model.read(source), []
    for token in target.split(1, 1):
        scores, state = model.step(token, state)
        said.append(scores.log_softmax(-1))
    torch.testing.assert_close(torch.cat(said, 1), whole, atol=1e-5, rtol=1e-5)
    with ops.reference():
        again = model.head.logits(model(source, Sequences.full(target)).hidden).log_softmax(-1)
    torch.testing.assert_close(again, whole, atol=1e-5, rtol=1e-5)
