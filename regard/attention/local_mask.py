"""The mask of a decoder's local attention: a token sees the last `window` ones, itself included.

    mask = local_mask(batch, 256)      of a layer with a locally banded matrix (Child et al. 2019)

Long sequences are computed block by block: time and memory grow with the length, not its square.
"""

from __future__ import annotations

from regard.attention.block_sparse import by_blocks
from regard.attention.masks import causal
from regard.attention.masks import window as windowed
from regard.data.batches import Sequences
from regard.ops import KeyMask, UnpaddedMask

# Sequences of at least `LONG` windows are computed by blocks, of which `BLOCKS` are one window.
# On one thread, 12 heads of 64, a window of 256, forward and backward: at 2,048 tokens blocks take
# 0.20 s, the dense grid 0.65 s; at 1,024 tokens 0.14 s and 0.16 s, and at 512 the grid is faster.
LONG, BLOCKS = 4, 4
SMALLEST_BLOCK = 16


def local_mask(batch: Sequences, window: int | None) -> KeyMask:
    """The causal mask of a batch in which a token sees the last `window` tokens; None: all."""
    if window is None or batch.width <= window:
        return batch.causal_mask()
    if batch.layout is not None:
        offsets = batch.layout.offsets
        return KeyMask(unpadded=UnpaddedMask(offsets, offsets, causal=True, window=window))
    length, device = batch.width, batch.ids.device
    if length < LONG * window or device.type == "cuda":
        return KeyMask.causal(length, device, window)
    size = max(SMALLEST_BLOCK, window // BLOCKS)
    return by_blocks(causal() & windowed(window - 1, 0), length, size, device=device)
