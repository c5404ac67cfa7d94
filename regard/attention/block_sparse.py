"""Attention under a mask that leaves most pairs out (Zaheer et al. 2020, "Big Bird", section 2).

    pattern = block_window(64, 1) | global_blocks(64) | random_blocks(64, plan)
    mask = by_blocks(padding(lengths) & pattern, length, 64, sequences=B)
    context = attend(query, key, value, mask=mask)

Positions are cut into blocks. `by_blocks` finds which blocks of keys each block of queries may see,
and only these are computed: time and memory grow with the length and not with its square. The mask
may be any mask, not only one of whole blocks: the result is attention under exactly this mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard import ops
from regard.attention.masks import BlockRanges, Coordinates, Device, Mask
from regard.ops import ALL_KEYS, NO_DROP, BlockRows, Drop, KeyMask, SparseMask

CHUNK = 2**22  # elements of the keys that are gathered at a time: 16 MB in float32

# ------------------------------------------------------------------------------- patterns


@dataclass(frozen=True)
class BlockWindow(Mask):
    size: int
    before: int
    after: int

    def allows(self, at: Coordinates) -> Tensor:
        distance = at.query // self.size - at.key // self.size
        return (distance <= self.before) & (distance >= -self.after)

    def touches(self, at: BlockRanges) -> Tensor:
        (first, last), (start, stop) = at.query, at.key
        low, high = first // self.size - stop // self.size, last // self.size - start // self.size
        return (low <= self.before) & (high >= -self.after)

    def same_within_blocks(self, size: int) -> bool:
        return self.size % size == 0


@dataclass(frozen=True)
class GlobalBlocks(Mask):
    size: int
    lengths: Tensor | None

    def allows(self, at: Coordinates) -> Tensor:
        key, query = ((end, end) for end in (at.key, at.query))
        return self._global(key, at.sequence) | self._global(query, at.sequence)

    def touches(self, at: BlockRanges) -> Tensor:
        return self._global(at.key, at.sequence) | self._global(at.query, at.sequence)

    def same_within_blocks(self, size: int) -> bool:
        return self.size % size == 0

    def _global(self, ends: tuple[Tensor, Tensor], sequence: Tensor) -> Tensor:
        """Whether a global block is among those from the first to the last position."""
        first, last = (end // self.size for end in ends)
        if self.lengths is None:
            return (first == 0).expand(1, 1, *first.shape[-2:]) if first.dim() < 4 else first == 0
        final = (self.lengths.to(first.device)[sequence] - 1) // self.size
        return (first == 0) | ((first <= final) & (final <= last))


@dataclass(frozen=True)
class RandomBlocks(Mask):
    size: int
    plan: Tensor  # see `random_blocks`

    def allows(self, at: Coordinates) -> Tensor:
        key = at.key // self.size
        return self._chosen(at.sequence, at.head, at.query // self.size, key, key)

    def touches(self, at: BlockRanges) -> Tensor:
        query, other = (end // self.size for end in at.query)
        if not torch.equal(query, other):
            return super().touches(at)
        return self._chosen(at.sequence, at.head, query, *(end // self.size for end in at.key))

    def same_within_blocks(self, size: int) -> bool:
        return self.size % size == 0

    def _chosen(
        self, sequence: Tensor, head: Tensor, query: Tensor, first: Tensor, last: Tensor
    ) -> Tensor:
        """Whether a block of queries sees one of the blocks of keys from the first to the last."""
        plan = self.plan.to(first.device)
        sequences, heads, blocks, count = plan.shape
        sequence = sequence if sequences > 1 else torch.zeros_like(sequence)
        head = head if heads > 1 else torch.zeros_like(head)
        seen = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=first.device)
        for i in range(count):
            chosen = plan[sequence, head, query.clamp(max=blocks - 1), i]
            seen = seen | ((first <= chosen) & (chosen <= last))
        return seen & (query < blocks)


@dataclass(frozen=True)
class FullIfShort(Mask):
    lengths: Tensor
    max_length: int

    def allows(self, at: Coordinates) -> Tensor:
        return self.lengths.to(at.key.device)[at.sequence] <= self.max_length

    def touches(self, at: BlockRanges) -> Tensor:
        return self.lengths.to(at.sequence.device)[at.sequence] <= self.max_length

    def same_within_blocks(self, size: int) -> bool:
        return True


def block_window(size: int, before: int, after: int | None = None) -> Mask:
    """A block of `size` positions sees itself, `before` blocks before it and `after` after it.

    after: None: as many as `before`.
    """
    return BlockWindow(size, before, before if after is None else after)


def global_blocks(size: int, lengths: Tensor | None = None) -> Mask:
    """The first block of `size` positions sees all blocks, and all blocks see it; with the lengths
    (B,) of the sequences, the last block of each too.
    """
    return GlobalBlocks(size, lengths)


def random_blocks(size: int, plan: Tensor) -> Mask:
    """Block n of the queries of a sequence sees the blocks `plan[sequence, head, n]` of keys.

    plan: (B or 1, H or 1, N, R) indices of blocks, -1 for none; see `random_plan`. N is the number
        of blocks, R that of the random ones for each.
    """
    return RandomBlocks(size, plan)


def full_if_short(lengths: Tensor, max_length: int) -> Mask:
    """Sequences whose length, (B,), is at most `max_length` have full attention."""
    return FullIfShort(lengths, max_length)


def random_plan(counts: Tensor, heads: int, picks: int, seed: int) -> Tensor:
    """For each block of queries R other blocks, drawn without replacement: (B, H, N, R).

    Blocks of a window of one block, and global blocks, are not drawn. The draws for a block depend
    on the seed, the head and the index of the block, and not on the other sequences.

    Args:
        counts: (B,), the number of blocks of each sequence.
        picks: R; where there are fewer blocks, the rest are -1.
    """
    longest = int(counts.max()) if counts.numel() else 0
    draws = torch.rand(longest, heads, picks, generator=torch.Generator().manual_seed(seed))
    draws = draws.permute(1, 0, 2).to(counts.device)  # (N, H, R) -> (H, N, R)
    block = torch.arange(longest, device=counts.device)
    # The blocks 1 ... end - 1 without those of the window, which begins at `low`.
    end = (counts - 1)[:, None]  # (B, 1)
    low = (block - 1).clamp(min=1)
    inside = (torch.minimum(block + 2, end) - low).clamp(min=0)
    choices = (end - 1 - inside).clamp(min=0)[:, None]  # (B, 1, N)
    drawn: list[Tensor] = []
    for i in range(picks):
        rank = (draws[None, ..., i] * (choices - i)).long()  # (B, H, N), of those that are left
        for other in torch.stack(drawn, -1).sort(-1).values.unbind(-1) if drawn else ():
            rank = rank + (rank >= other)
        drawn.append(rank)
    if not drawn:
        return counts.new_zeros(len(counts), heads, longest, 0)
    ranks = torch.stack(drawn, -1)  # (B, H, N, R)
    number = 1 + ranks + inside[:, None, :, None] * (1 + ranks >= low[:, None])
    exists = torch.arange(picks, device=counts.device) < choices[..., None]
    is_global = (block == 0) | (block >= end)  # (B, N)
    return number.masked_fill(~(exists & ~is_global[:, None, :, None]), -1)


# --------------------------------------------------------------------------------- layout


def by_blocks(
    mask: Mask,
    length: int,
    size: int,
    *,
    sequences: int = 1,
    heads: int = 1,
    device: Device = None,
) -> KeyMask:
    """The mask of T = S = `length` positions, for block-sparse attention.

    Args:
        length: positions of a sequence; it need not be a multiple of `size`.
        size: positions of a block.
        sequences, heads: B and H, where the mask depends on them; else 1.
    """
    mask, count = mask.simplified(length), -(-length // size)
    if mask.trivial(length) or not length:
        return ALL_KEYS
    # The blocks are found from values, which tensors on the meta device do not have.
    on_meta = device is not None and torch.device(device).type == "meta"
    axis = partial(torch.arange, device="cpu" if on_meta else device)
    first = axis(count) * size
    ends = first, (first + size - 1).clamp(max=length - 1)
    sequence, head = axis(sequences)[:, None, None, None], axis(heads)[None, :, None, None]
    queries, keys = (end[:, None] for end in ends), (end[None] for end in ends)
    touched = mask.touches(BlockRanges(sequence, head, tuple(queries), tuple(keys)))  # type: ignore[arg-type]
    touched = touched.expand(*touched.shape[:-2], count, count)
    rows = [
        _rows_of(mask, touched, chosen, length, size, sequences, heads)
        for chosen in _groups(touched.sum(-1).amax((0, 1)))
    ]
    if on_meta:
        rows = [BlockRows(*(part.to("meta") for part in vars(row).values())) for row in rows]
    options = dict(sequences=sequences, heads=heads, device=device)
    grid = lambda queries: mask.grid(queries, length, **options)  # type: ignore[arg-type] # noqa: E731
    return KeyMask(sparse=SparseMask(size, length, tuple(rows), grid))


def _groups(counts: Tensor) -> list[Tensor]:
    """The indices of the rows that see few blocks, and of those that see many, by counts (N,).

    Each row is padded to the largest count of its group; the two groups are those with the fewest
    pairs of blocks in total.
    """
    ordered = counts.sort().values
    sizes = torch.arange(1, len(counts) + 1, device=counts.device)
    best = int((ordered * sizes + ordered[-1] * (len(counts) - sizes)).argmin())
    short = counts <= ordered[best]
    return [group for part in (short, ~short) if len(group := part.nonzero()[:, 0])]


def _rows_of(
    mask: Mask, touched: Tensor, rows: Tensor, length: int, size: int, sequences: int, heads: int
) -> BlockRows:
    """The blocks of keys that some blocks of queries see, and the mask inside these blocks.

    Args:
        touched: (B, H, N, N), see `Mask.touches`.
        rows: (R,) indices of the blocks of queries.
    """
    seen, count = touched[:, :, rows], touched.size(-1)
    width = int(seen.sum(-1).max())
    order = torch.arange(count, device=rows.device)
    keys = (seen * (2 * count) - order).topk(width, dim=-1).indices.sort(-1).values  # (.., R, M)
    inside = torch.arange(size, device=rows.device)
    # (.., R, M) -> (.., R, M * size)
    exists = seen.gather(-1, keys)[..., None].expand(*keys.shape, size).flatten(-2)
    key = (keys[..., None] * size + inside).flatten(-2)[..., None, :]  # (.., R, 1, M * size)
    query = (rows * size)[:, None, None]  # (R, 1, 1)
    if not mask.same_within_blocks(size):
        query = query + inside[:, None]
    ends = dict(query=query.clamp(max=length - 1)[None, None], key=key.clamp(max=length - 1))
    sequence = torch.arange(sequences, device=rows.device)[:, None, None, None, None]
    head = torch.arange(heads, device=rows.device)[None, :, None, None, None]
    grid = mask.allows(Coordinates(sequence, head, **ends)) & exists[..., None, :] & (key < length)
    return BlockRows(rows, keys, grid)


# ---------------------------------------------------------- an implementation of ops.attention


def _takes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: KeyMask = ALL_KEYS,
    bias: Tensor | None = None,
    scale: float | None = None,
    drop: Drop = NO_DROP,
) -> bool:
    sparse = mask.sparse is not None and bias is None and not torch.compiler.is_compiling()
    return sparse and query.dim() == 4 and query.size(2) == key.size(2)


def _by_block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: KeyMask = ALL_KEYS,
    bias: Tensor | None = None,
    scale: float | None = None,
    drop: Drop = NO_DROP,
) -> Tensor:
    """Queries and keys (B, H, T, K), values (B, H, T, K') -> (B, H, T, K')."""
    assert mask.sparse is not None
    scale = query.size(-1) ** -0.5 if scale is None else scale
    call = _Call(mask.sparse, scale, drop)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        return _BlockAttention.apply(query, key, value, call)
    return call.forward(query, key, value)


@dataclass(frozen=True)
class _Call:
    """Block-sparse attention of one layer, forward and backward."""

    mask: SparseMask
    scale: float
    drop: Drop

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        blocks = [self._blocks(x) for x in (query, key, value)]
        context = torch.empty_like(blocks[0][..., :1]).expand(*blocks[0].shape[:-1], value.size(-1))
        context = torch.empty_like(context, memory_format=torch.contiguous_format)
        for part in self._parts(blocks[1]):
            context[:, :, part.rows] = self._attended(*part.read(*blocks), part)
        return context.flatten(2, 3)[:, :, : query.size(2)]  # (B, H, N, size, K') -> (B, H, T, K')

    def backward(self, grad: Tensor, *inputs: Tensor) -> list[Tensor]:
        """The gradients of queries, keys and values; keys and values are gathered again."""
        blocks, outer = [self._blocks(x) for x in inputs], self._blocks(grad)
        sums = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in blocks]
        for part in self._parts(blocks[1]):
            gathered = [x.detach().requires_grad_() for x in part.read(*blocks)]
            with torch.enable_grad():
                context = self._attended(gathered[0], gathered[1], gathered[2], part)
            gradients = torch.autograd.grad(context, gathered, outer[:, :, part.rows])
            part.add(sums, *gradients)
        # (B, H, N, size, K) -> (B, H, T, K)
        return [total.flatten(2, 3)[:, :, : grad.size(2)] for total in sums]

    def _blocks(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> (B, H, N, size, K), with zeros after the last position."""
        missing = -x.size(2) % self.mask.size
        return F.pad(x, (0, 0, 0, missing)).unflatten(2, (-1, self.mask.size))

    def _parts(self, key: Tensor) -> list[_Part]:
        """Rows of blocks in parts, whose gathered keys have at most `CHUNK` elements; on the meta
        device, whose tensors have no data, in as few parts as there are groups of rows.
        """
        parts = []
        for rows in self.mask.rows:
            numbers = key.size(0) * key.size(1) * rows.keys.size(-1) * key[0, 0, 0].numel()
            step = len(rows.rows) if key.is_meta else max(1, CHUNK // max(1, numbers))
            parts += [
                _Part(rows.rows[i : i + step], rows.keys[:, :, i : i + step],
                      rows.grid[:, :, i : i + step])
                for i in range(0, len(rows.rows), step)
            ]  # fmt: skip
        return parts

    def _attended(self, query: Tensor, key: Tensor, value: Tensor, part: _Part) -> Tensor:
        """Queries (B, H, R, size, K), keys (B, H, R, M * size, K) -> (B, H, R, size, K')."""
        sequences, heads, rows, size, _ = query.shape
        if self.drop.threshold:
            grid = part.grid.expand(sequences, heads, rows, -1, -1)
            weights = ops.attention_weights((query * self.scale) @ key.mT, KeyMask(grid))
            return (weights * self._dropout_factors(part, weights).to(weights.dtype)) @ value
        # The mask as numbers is expanded without a copy; from a boolean one the kernel would make a
        # number for each query.
        bias = torch.zeros_like(part.grid, dtype=query.dtype).masked_fill_(~part.grid, -torch.inf)
        bias = bias.expand(sequences, heads, rows, -1, -1).flatten(0, 1).expand(-1, -1, size, -1)
        # (B, H, R, ., .) -> (B * H, R, ., .)
        query, key, value = (x.flatten(0, 1) for x in (query, key, value))
        context = F.scaled_dot_product_attention(query, key, value, bias, scale=self.scale)
        return context.unflatten(0, (sequences, heads))  # -> (B, H, R, size, K')

    def _dropout_factors(self, part: _Part, weights: Tensor) -> Tensor:
        """0 for the weights that dropout of the dense matrix drops, 1 / (1 - p) for the others:
        (B, H, R, size, M * size).
        """
        sequences, heads, _, size, _ = weights.shape
        length, inside = self.mask.length, torch.arange(size, device=weights.device)
        head = torch.arange(sequences * heads, device=weights.device)
        head = head.view(sequences, heads, 1, 1, 1)
        row = head * length + (part.rows[:, None] * size + inside)[..., None]
        column = (part.keys[..., None] * size + inside).flatten(-2)[..., None, :]
        return ops.keep_at(row, column, length, self.drop) * self.drop.scale


@dataclass(frozen=True)
class _Part:
    """Some blocks of queries, (R,), and the keys that they see; see `BlockRows`."""

    rows: Tensor
    keys: Tensor
    grid: Tensor

    def read(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From blocks (B, H, N, size, K): the queries (B, H, R, size, K), and the keys and values
        that they see, (B, H, R, M * size, K).
        """
        index, shape = self._index(key), (*key.shape[:2], len(self.rows), -1)
        gathered = [
            x.flatten(0, 2).index_select(0, index).view(*shape, x.size(-1)) for x in (key, value)
        ]
        return query[:, :, self.rows], gathered[0], gathered[1]

    def add(self, sums: list[Tensor], query: Tensor, key: Tensor, value: Tensor) -> None:
        """Add the gradients of what was read to those of the blocks."""
        sums[0][:, :, self.rows] += query
        for total, gradient in ((sums[1], key), (sums[2], value)):
            blocks = gradient.reshape(-1, *total.shape[3:])
            total.flatten(0, 2).index_add_(0, self._index(total), blocks)

    def _index(self, blocks: Tensor) -> Tensor:
        """The indices of the gathered blocks among the B * H * N blocks: (B * H * R * M,)."""
        sequences, heads, count = blocks.shape[:3]
        head = torch.arange(sequences * heads, device=blocks.device).view(sequences, heads, 1, 1)
        return (head * count + self.keys).flatten()


class _BlockAttention(torch.autograd.Function):
    """Saves only queries, keys and values for the backward pass."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, call: _Call) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.call = call
        return call.forward(query, key, value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.call.backward(grads[0], *ctx.saved_tensors), None


ops.register(ops.attention, "block-sparse", _by_block, when=_takes)
