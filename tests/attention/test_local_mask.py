"""Local attention of decoders: every form of its mask against the formula."""

from __future__ import annotations

import pytest
import torch

from regard.attention.cache import KeyValueCache
from regard.attention.multihead import SelfAttention
from regard.attention.selection import BLOCKS, LONG, SMALLEST_BLOCK, local_mask
from regard.data.batches import Sequences
from regard.ops import KeyMask

LENGTHS = [1, 7, 64, 65, 130]


def formula(count: int, window: int | None) -> torch.Tensor:
    """key <= query < key + window, written out."""
    rows = [
        [key <= query and (window is None or query < key + window) for key in range(count)]
        for query in range(count)
    ]
    return torch.tensor(rows)


def texts(*lengths: int) -> Sequences:
    return Sequences(
        torch.ones(len(lengths), max(lengths), dtype=torch.long), torch.tensor(lengths)
    )


def attention() -> SelfAttention:
    torch.manual_seed(0)
    return SelfAttention(8, 2, kind="decoder").double()


@pytest.mark.parametrize("window", [None, 1, 2, 16, 32, 200])
@pytest.mark.parametrize("length", LENGTHS)
def test_attention_equals_that_under_the_written_out_grid(length, window):
    layer, results = attention(), []
    mask = local_mask(texts(length), window)
    for one in (mask, KeyMask(formula(length, window)[None, None])):
        torch.manual_seed(1)
        hidden = torch.randn(2, length, 8, dtype=torch.double, requires_grad=True)
        found = layer(hidden, one)
        found.square().sum().backward()
        results.append((found.detach(), hidden.grad))
    torch.testing.assert_close(*results, atol=1e-12, rtol=1e-12)
    by_blocks = mask.sparse is not None
    assert by_blocks == (window is not None and length >= LONG * window and length > window)
    if window is None or length <= window:
        assert mask.is_causal  # the fastest kernels take it
    if by_blocks:
        assert mask.sparse.size == max(SMALLEST_BLOCK, window // BLOCKS)


@pytest.mark.parametrize("window", [1, 3, 8, 40])
def test_sequences_without_padding_see_their_own_window(window):
    layer, padded = attention(), texts(5, 20, 1, 33)
    unpadded = padded.unpadded()
    torch.manual_seed(1)
    hidden = torch.randn(4, 33, 8, dtype=torch.double)
    wanted = layer(hidden, local_mask(padded, window))[padded.keep]
    packed = unpadded.layout.unpad(hidden)
    found = unpadded.layout.pad(layer(packed, local_mask(unpadded, window)))[padded.keep]
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("window", [1, 3, 8, 40])
@pytest.mark.parametrize("lengths", [[6, 6], [0, 6, 3]])
@pytest.mark.parametrize("count", [1, 4])
def test_tokens_behind_a_cache_see_the_window_before_them(window, lengths, count):
    cache = KeyValueCache.empty(len(lengths), 1, 1, 1, like=torch.zeros(1)).advance(6)
    cache = cache.truncate(torch.tensor(lengths))
    mask = cache.mask(count, window)
    total = cache.longest + count
    seen = torch.ones(1, 1, 1, 1, dtype=torch.bool) if mask.grid is None else mask.grid
    seen = seen.expand(len(lengths), 1, count, total)
    for row, length in enumerate(lengths):
        wanted = formula(total, window)[length : length + count]
        assert torch.equal(seen[row, 0], wanted)
