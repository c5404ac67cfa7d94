"""GPT-BERT's rows, masks and loss, and pseudo-log-likelihoods, compared with plain formulas."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from every_task import lines
from torch import Tensor
from torch.nn import functional as F

from regard.data.batches import IGNORE, Sequences
from regard.data.lm_streams import ShuffledBlocks
from regard.data.pretraining import MaskVocabulary
from regard.data.token_arrays import TokenArray
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.llama import Llama, LlamaConfig
from regard.tasks.hybrid_language_modeling import HybridBatch, HybridBlocks, HybridLanguageModel
from regard.text import train

TEXT = TokenArray.of([np.arange(5, 1005).tolist()])  # each token is the one before it plus 1
MASK, SPECIAL = 4, range(5, 1005, 10)
WORDS = MaskVocabulary(MASK, np.array([n for n in range(5, 1010) if n not in SPECIAL]))


def blocks(share=0.25, probability=0.3, **sizes) -> HybridBlocks:
    sizes = dict(batch_size=6, sequence_length=16, seed=3) | sizes
    return HybridBlocks(ShuffledBlocks(TEXT, **sizes), WORDS, share, probability)


@pytest.mark.parametrize("share", [0.25, 0.4])
@pytest.mark.parametrize("batch_size", [1, 6])
def test_so_many_rows_have_masks_whose_targets_are_the_hidden_tokens(share, batch_size):
    data, seen = blocks(share, batch_size=batch_size), []
    for batch, plain in zip(data.epoch(1), data.blocks.epoch(1), strict=True):
        whole, lengths = batch.texts.extras["bidirectional"], batch.texts.lengths.tolist()
        seen += whole.tolist()
        for row, length in enumerate(lengths):
            ids, targets = batch.texts.ids[row, :length], batch.targets[row, :length]
            before, after = plain.tokens[row, :length], plain.targets[row, :length]
            assert (batch.targets[row, length:] == IGNORE).all()
            if not whole[row]:
                assert torch.equal(ids, before) and torch.equal(targets, after)
                continue
            chosen = targets != IGNORE
            assert torch.equal(targets[chosen], after[chosen]) and ids[0] == before[0]
            free = sum(int(token) not in SPECIAL for token in after)
            assert chosen.sum() == max(1, round(0.3 * free))
            assert not {*targets[chosen].tolist()} & {*SPECIAL}
            changed = torch.nonzero(ids != before)[:, 0]
            assert chosen[changed - 1].all()  # the position before a hidden token predicts it
    ends = [int(np.floor(n * share)) for n in range(len(seen) + 1)]
    assert seen == [end > start for start, end in pairwise(ends)]


def linear(x: Tensor, layer) -> Tensor:
    return F.linear(x, layer.weight, layer.bias)


def norm(x: Tensor, layer) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], layer.weight, layer.bias)


def plain_log_probs(model: GPT2, ids: Tensor, allowed: Tensor) -> Tensor:
    """log p of the token after each of the ids (T,), in float64; allowed: (T, T)."""
    x = model.embedding.weight[ids] + model.positions.vectors.weight[: len(ids)]
    for block in model.blocks:
        parts = linear(norm(x, block.attention_norm), block.attention.query_key_value).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (2, -1)).transpose(0, 1) for part in parts)
        scores = query @ key.mT / query.size(-1) ** 0.5
        context = scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ value
        x = x + linear(context.transpose(0, 1).flatten(1), block.attention.output)
        inner = F.gelu(linear(norm(x, block.feed_norm), block.feed.inner), approximate="tanh")
        x = x + linear(inner, block.feed.outer)
    return (norm(x, model.norm) @ model.embedding.weight.T).log_softmax(-1)


@pytest.fixture
def task() -> HybridLanguageModel:
    tokenizer = train("words", lines(), 60).with_roles({"mask": "[MASK]"})
    torch.manual_seed(0)
    config = GPT2Config(
        tokenizer.vocab_size, d_model=16, heads=2, layers=2, max_length=16, dropout=0.0,
        attention_dropout=0.0, embedding_dropout=0.0, init_range=0.3, eos=tokenizer.eos_id,
    )  # fmt: skip
    task = HybridLanguageModel(GPT2(config).double(), tokenizer, format="lines")
    task.masked_share = 0.25
    return task


def test_the_loss_and_its_gradient_are_those_of_the_plain_formula(task):
    """Two causal rows and two masked ones, of which one is shorter than the batch."""
    texts = torch.randint(5, 20, (4, 7), generator=torch.Generator().manual_seed(1))
    ids, targets, lengths = texts[:, :-1].clone(), texts[:, 1:].clone(), torch.tensor([6, 6, 6, 4])
    mask, masked_rows = task.tokenizer.mask_id, torch.tensor([False, True, False, True])
    hidden = {1: [2, 5], 3: [3]}  # row -> the tokens that are masked
    targets[masked_rows] = IGNORE
    for row, positions in hidden.items():
        for at in positions:
            targets[row, at - 1], ids[row, at] = texts[row, at], mask
    batch = HybridBatch(Sequences(ids, lengths, extras={"bidirectional": masked_rows}), targets)
    causal, masked = [], []
    for row, length in enumerate(lengths.tolist()):
        allowed = torch.ones(length, length, dtype=torch.bool)
        allowed = allowed if masked_rows[row] else allowed.tril()
        log_probs = plain_log_probs(task.module, ids[row, :length], allowed)
        for at in hidden.get(row, () if masked_rows[row] else range(1, 7)):
            (masked if masked_rows[row] else causal).append(log_probs[at - 1, texts[row, at]])
    wanted = -torch.stack(causal).mean() - torch.stack(masked).mean() / 3  # 0.25 / 0.75
    losses, _ = task.losses(batch, None)
    counts = task.counts(batch)
    assert counts == {"loss": 12, "masked": 3} == {name: n for name, (_, n) in losses.items()}
    found = sum(total / counts[name] for name, (total, _) in losses.items())
    assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
    weights = [*task.module.parameters()]
    gradients = (torch.autograd.grad(loss, weights) for loss in (found, wanted))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    alone = batch.select(torch.tensor([0, 2]))  # no row is masked
    assert task.counts(alone)["masked"] == 0 == task.losses(alone, None)[0]["masked"][0].item()


@pytest.mark.parametrize("kind, config", [(GPT2, GPT2Config), (Llama, LlamaConfig)])
def test_causal_rows_see_no_later_token_and_masked_ones_see_all_of_theirs(kind, config):
    torch.manual_seed(0)
    model = kind(config(30, d_model=16, heads=2, layers=2, max_length=16)).eval()
    ids = torch.arange(32).reshape(4, 8) % 30
    lengths, whole = torch.tensor([8, 8, 6, 6]), torch.tensor([False, True, False, True])
    changed = ids.index_fill(1, torch.tensor([5, 7]), 3)
    one, other = (
        model.encode(Sequences(x, lengths, extras={"bidirectional": whole})) for x in (ids, changed)
    )
    same = (one - other).abs().amax(-1) < 1e-6
    assert same[0].tolist() == same[2].tolist() == [True] * 5 + [False] * 3
    assert not same[1].any() and not same[3, :6].any()


@torch.no_grad()
def test_pseudo_log_likelihoods_mask_each_token_and_read_the_position_before(task):
    texts = ["the old cat sat", "a mat"]
    found = task.likelihoods_by_kind["pseudo"](texts)
    for text, likelihood in zip(texts, found, strict=True):
        ids, total = [task.tokenizer.eos_id, *task.tokenizer.encode(text).ids], 0.0
        ids = torch.tensor([*ids, task.tokenizer.eos_id])
        for at in range(1, len(ids) - 1):
            masked = ids.index_fill(0, torch.tensor(at), task.tokenizer.mask_id)
            allowed = torch.ones(len(ids), len(ids), dtype=torch.bool)
            total += float(plain_log_probs(task.module, masked, allowed)[at - 1, ids[at]])
        assert likelihood == pytest.approx(total, rel=1e-9)
    kinds = {"causal", "causal-without-line-end", "pseudo"}
    assert {*task.likelihoods_by_kind} == kinds
