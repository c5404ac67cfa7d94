"""Position tables and masks, from the tensors that the models use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.errors import ConfigError
from regard.visual.heatmap import Heatmap
from regard.visual.picture import as_labels, as_matrix


def sinusoids(length: int = 64, d_model: int = 64) -> Heatmap:
    """The sinusoidal table of the Transformer: `length` positions, `d_model` dimensions.

    PE(pos, 2i) = sin(pos / 10000^(2i/D)),  PE(pos, 2i+1) = cos(pos / 10000^(2i/D))
    """
    import torch

    from regard.layers.positions import sinusoid

    table = as_matrix(sinusoid(torch.arange(length), d_model))
    title, axes = f"sinusoidal positions, {length} x {d_model}", ("positions", "dimensions")
    return Heatmap(table, _every(length), _every(d_model), title, None, 2, *axes)


def mask_grid(
    grid: Any,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    title: str = "which key a query may attend to",
) -> Heatmap:
    """A mask as a heatmap.

    grid: boolean (T, S), True = may attend, such as `masks.causal().grid(6, 6)[0, 0]`.  queries,
    keys: T and S labels, by default numbers from 0.

    Raises:
        ConfigError: the grid is not boolean or no matrix.
    """
    rows = grid.tolist() if hasattr(grid, "tolist") else [list(row) for row in grid]
    if any(not isinstance(value, bool) for row in rows for value in row):
        raise ConfigError(
            "`grid` must be a boolean matrix (queries, keys), but is "
            f"{getattr(grid, 'dtype', 'not')} of shape {tuple(getattr(grid, 'shape', ()))}. "
            "Pick one row and head of a mask's grid: `mask.grid(T, S)[0, 0]`."
        )
    matrix = as_matrix(rows)
    columns = as_labels(keys, len(matrix[0]) if matrix else 0, "keys")
    labels = as_labels(queries, len(matrix), "queries")
    return Heatmap(matrix, labels, columns, title, 1.0, 0, "queries", "keys")


def sparse_patterns(
    blocks: int = 16, window: int = 1, random: int = 2, seed: int = 0
) -> dict[str, Heatmap]:
    """Which blocks of keys a block of queries sees in BigBird: at random, in a window, globally,
    and all of these together (Zaheer et al. 2020, figure 1).

    Args:
        blocks: of a sequence.
        window: blocks on either side.
        random: blocks drawn for each block of queries.
        seed: of the draws.
    """
    import torch

    from regard.attention import block_sparse

    counts = torch.tensor([blocks])
    plan = block_sparse.random_plan(counts, 1, random, seed)
    masks = {
        "random": block_sparse.random_blocks(1, plan),
        "window": block_sparse.block_window(1, window),
        "global": block_sparse.global_blocks(1, counts),
    }
    masks["combined"] = masks["random"] | masks["window"] | masks["global"]
    return {
        name: mask_grid(mask.grid(blocks, blocks)[0, 0], title=f"{name} attention, by blocks")
        for name, mask in masks.items()
    }


def _every(count: int) -> tuple[str, ...]:
    """Numbers from 0, as many as can be read; the others are empty."""
    step = 1 if count <= 32 else 8 if count <= 128 else 2 ** max(3, (count // 16).bit_length() - 1)
    return tuple(str(index) if index % step == 0 else "" for index in range(count))
