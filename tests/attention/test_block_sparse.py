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


def test_random_blocks_are_of_their_kind_and_repeat_with_the_seed():
    counts = torch.tensor([40, 12, 8])
    plan = random_plan(counts, 4, 3, seed=2)
    assert plan.shape == (3, 4, 40, 3)
    assert torch.equal(plan, random_plan(counts, 4, 3, seed=2))
    assert not torch.equal(plan, random_plan(counts, 4, 3, seed=3))
    for row, count in enumerate(counts.tolist()):
        alone = random_plan(counts[row : row + 1], 4, 3, seed=2)
        assert torch.equal(alone[0], plan[row, :, :count])
        for block in range(count):
            for head in range(4):
                chosen = [one for one in plan[row, head, block].tolist() if one >= 0]
                free = {*range(1, count - 1)} - {block - 1, block, block + 1}
                wanted = 0 if block in (0, count - 1) else min(3, len(free))
                assert len(chosen) == len({*chosen} & free) == wanted
    assert (plan[1, :, 12:] == -1).all()
    # Uniform: every block that may be drawn is, about as often as another.
    many = torch.cat([random_plan(torch.tensor([10]), 300, 2, seed=s)[0, :, 4] for s in range(9)])
    often = torch.bincount(many.flatten(), minlength=10)
    assert often[[0, 3, 4, 5, 9]].sum() == 0
    chance = often[[1, 2, 6, 7, 8]] / often.sum()
    assert (chance - 0.2).abs().max() < 0.03


def test_a_dilated_window_is_the_one_written_by_hand():
    grid = window(4, 2, step=2).grid(6, 6)[0, 0].int().tolist()
    assert grid == [
        [1, 0, 1, 0, 0, 0],
        [0, 1, 0, 1, 0, 0],
        [1, 0, 1, 0, 1, 0],
        [0, 1, 0, 1, 0, 1],
        [1, 0, 1, 0, 1, 0],
        [0, 1, 0, 1, 0, 1],
    ]
    with pytest.raises(ValueError, match="`step` must be at least 1"):
        window(4, step=0)


def test_masks_of_blocks_are_those_written_by_hand():
    lengths = torch.tensor([8, 4])
    plan = torch.tensor([[-1], [2], [-1], [-1]])[None, None]
    found = (global_blocks(2, lengths) | random_blocks(2, plan)).grid(8, 8, sequences=2)
    every, ends = [[1] * 8] * 2, [[1, 1, 0, 0, 0, 0, 1, 1]] * 2
    first = [*every, *[[1, 1, 0, 0, 1, 1, 1, 1]] * 2, *ends, *every]
    second = [*every, *every, *[[1, 1, 1, 1, 0, 0, 0, 0]] * 4]
    assert found[:, 0].int().tolist() == [first, second]
    near = block_window(2, 0, 1).grid(6, 6)[0, 0].int().tolist()
    assert near == [[1, 1, 1, 1, 0, 0]] * 2 + [[0, 0, 1, 1, 1, 1]] * 2 + [[0, 0, 0, 0, 1, 1]] * 2


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


def test_keep_at_gives_the_elements_of_the_dense_mask():
    drop, shape = Drop(11, 20_000), torch.Size((6, 13))
    rows, columns = torch.arange(6)[:, None], torch.tensor([0, 3, 4, 12, 7])
    found = ops.keep_at(rows, columns, 13, drop)
    assert torch.equal(found, ops.keep_mask(shape, drop)[:, columns])
