"""Attention block by block against dense attention under the same mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard import ops
from regard.attention import block_sparse
from regard.attention.attend import attend
from regard.attention.block_sparse import (
    block_window,
    by_blocks,
    full_if_short,
    global_blocks,
    random_blocks,
    random_plan,
)
from regard.attention.masks import Mask, causal, given, global_, padding, window
from regard.ops import Drop, KeyMask

B, H, K = 3, 2, 5


def blocks_in(lengths: Tensor, size: int) -> Tensor:
    return -(-lengths // size)


def pattern(name: str, length: int, size: int, lengths: Tensor) -> Mask:
    plan = random_plan(blocks_in(lengths, size), H, 2, seed=3)
    draw = torch.rand(B, H, length, length, generator=torch.Generator().manual_seed(1)) < 0.1
    patterns: dict[str, Mask] = {
        "window": window(3),
        "dilated": window(9, step=3),
        "causal window": causal() & window(4, 0),
        "global": window(2) | global_(size),
        "blocks": block_window(size, 1) | global_blocks(size, lengths),
        "random": block_window(size, 1) | random_blocks(size, plan),
        "bigbird": block_window(size, 1)
        | global_blocks(size, lengths)
        | random_blocks(size, plan)
        | full_if_short(lengths, 2 * size),
        "causal": causal() & (block_window(size, 1) | global_blocks(size)),
        "given": given(draw),
        "nothing": window(0) & given(torch.zeros(length, length, dtype=torch.bool)),
    }
    return padding(lengths) & patterns[name]


NAMES = [
    "window", "dilated", "causal window", "global", "blocks", "random", "bigbird", "causal",
    "given", "nothing",
]  # fmt: skip


def heads(length: int, dtype=torch.float64) -> list[Tensor]:
    draw = torch.Generator().manual_seed(length)
    return [torch.randn(B, H, length, K, generator=draw).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("dropout", [False, True], ids=["", "dropout"])
@pytest.mark.parametrize(("length", "size"), [(23, 3), (5, 8), (1, 4), (13, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_block_by_block_equals_dense_attention_forward_and_backward(
    name, length, size, dropout, monkeypatch
):
    monkeypatch.setattr(block_sparse, "CHUNK", 700)  # several rows at a time, and not all
    lengths = torch.tensor([length, max(1, length // 2), max(1, length - 2)])
    allowed = pattern(name, length, size, lengths)
    mask = by_blocks(allowed, length, size, sequences=B, heads=H)
    drop = Drop(7, 9000) if dropout else ops.NO_DROP
    results = []
    for one in (mask, allowed.resolve(length, length, sequences=B, heads=H)):
        inputs = [x.requires_grad_() for x in heads(length)]
        with ops.without("attention.torch", "attention.compiled"):
            context = ops.attention(*inputs, one, drop=drop)
        mix = torch.randn(context.shape, generator=torch.Generator().manual_seed(5)).double()
        (context * mix).sum().backward()
        results.append([context.detach(), *(x.grad for x in inputs)])
    assert mask.sparse is not None or length == 1
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)
    with torch.no_grad():
        context = ops.attention(*heads(length), mask, drop=drop)
    torch.testing.assert_close(context, results[1][0])


@pytest.mark.parametrize("name", ["bigbird", "causal", "dilated", "global"])
def test_the_blocks_compute_the_mask_and_each_block_of_queries_once(name):
    length, size = 61, 4
    lengths = torch.tensor([61, 40, 5])
    allowed = pattern(name, length, size, lengths)
    sparse = by_blocks(allowed, length, size, sequences=B, heads=H).sparse
    grid = allowed.grid(length, length, sequences=B, heads=H)
    torch.testing.assert_close(sparse.dense.grid.expand_as(grid), grid)
    rows = torch.cat([part.rows for part in sparse.rows]).sort().values
    assert rows.tolist() == list(range(-(-length // size)))
    read = sum(part.keys[0, 0].numel() for part in sparse.rows) * size**2
    assert read < length**2  # fewer pairs than the dense grid has


def test_the_work_grows_with_the_length_and_not_with_its_square():
    pairs = []
    for length in (512, 1024, 2048):
        lengths = torch.tensor([length])
        plan = random_plan(blocks_in(lengths, 16), 1, 3, seed=0)
        found = block_window(16, 1) | global_blocks(16, lengths) | random_blocks(16, plan)
        rows = by_blocks(found, length, 16).sparse.rows
        pairs.append(sum(part.keys.numel() for part in rows))
    assert pairs[1] < 2.1 * pairs[0] and pairs[2] < 2.1 * pairs[1]


def test_other_scores_and_biases_take_the_dense_grid():
    length, size, lengths = 17, 4, torch.tensor([17, 9, 3])
    allowed = pattern("bigbird", length, size, lengths)
    mask = by_blocks(allowed, length, size, sequences=B, heads=H)
    grid = KeyMask(allowed.grid(length, length, sequences=B, heads=H))
    query, key, value = heads(length)
    bias = torch.randn(H, length, length).double()
    for options in (dict(bias=bias), dict(score=lambda q, k: (q @ k.mT).tanh())):
        found = attend(query, key, value, mask=mask, **options)
        torch.testing.assert_close(found, attend(query, key, value, mask=grid, **options))
