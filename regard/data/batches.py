"""What a model is given: token ids and lengths, side by side, as values that never change.

Every batch is a frozen dataclass of int64 tensors. Sequences are padded on the right to the longest
one, (B, T), or lie one behind the other without padding, (1, N). The lengths, not the padding id,
say where a sequence ends, so that a padding id inside a text can do no harm.

What a layer computes of each token alone does not depend on where sequences begin and end.
Attention does, and reads it from `ops.UnpaddedMask`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, Self, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from regard.ops import KeyMask, SequenceOffsets, UnpaddedMask

MULTIPLE = 16  # of tokens: oneDNN compiles a kernel for each new size, so there should be few
Losses = dict[str, tuple[Tensor, int]]  # of a batch: the sum over its items, and their number


class TokenSubset(Protocol):
    """The tokens whose hidden states are wanted; the last block computes no others."""

    def of(self, hidden: Tensor) -> Tensor:
        """Their hidden states: (B, T, D) -> (B, T', D), or (1, N, D) -> (1, M, D)."""

    def mask_of(self, mask: KeyMask) -> KeyMask:
        """The keys that they may attend to."""


class AllTokens:
    """Every token."""

    def of(self, hidden: Tensor) -> Tensor:
        """(B, T, D) as it is."""
        return hidden

    def mask_of(self, mask: KeyMask) -> KeyMask:
        """As it is."""
        return mask


ALL = AllTokens()


class FirstTokens:
    """The first token of each padded sequence."""

    def of(self, hidden: Tensor) -> Tensor:
        """(B, T, D) -> (B, 1, D)"""
        return hidden[:, :1]

    def mask_of(self, mask: KeyMask) -> KeyMask:
        """That of the first query of each sequence."""
        if mask.sparse is not None:
            return KeyMask(mask.sparse.grid(1))
        if mask.grid is None or mask.grid.size(-2) == 1:
            return mask
        return KeyMask(mask.grid[..., :1, :])


@dataclass(frozen=True)
class UnpaddedTokens:
    """Some tokens of sequences without padding: their indices (M,), ascending, and their layout."""

    tokens: Tensor
    layout: UnpaddedLayout

    def of(self, hidden: Tensor) -> Tensor:
        """(1, N, D) -> (1, M, D)"""
        return _Move.apply(hidden[0], self.tokens, None)[None]

    def mask_of(self, mask: KeyMask) -> KeyMask:
        """Each query sees its own sequence.

        Raises:
            ValueError: the mask is causal, so that queries have keys of their own.
        """
        if mask.unpadded is None or mask.unpadded.causal:
            raise ValueError(
                "Some tokens of an unpadded batch can be selected only where each token sees its "
                "whole sequence. Encode all tokens, and select among their hidden states."
            )
        return KeyMask(unpadded=UnpaddedMask(self.layout.offsets, mask.unpadded.keys))


class UnpaddedLayout:
    """Which tokens of a padded batch (B, T) the unpadded one (1, N) holds, in which order.

    width: T.  tokens: the index of each token in the flattened batch (B * T).  slots: (N,) these,
    followed by up to 15 indices of padding if there are as many, so that N is a multiple of 16.
    They are a sequence of their own at the end, which nothing reads and which is no longer than
    the others can be.
    """

    def __init__(self, lengths: Tensor, width: int, multiple: int = MULTIPLE):
        keep = torch.arange(width) < lengths[:, None]
        tokens, gaps = (part.flatten().nonzero()[:, 0] for part in (keep, ~keep))
        self.lengths, self.width, self.tokens = lengths, width, tokens
        self.slots = torch.cat([tokens, gaps[: -len(tokens) % max(1, min(multiple, width))]])

    @cached_property
    def offsets(self) -> SequenceOffsets:
        """Where sequences begin; the last one is that of padding."""
        ends = torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])
        starts = torch.cat([ends, ends.new_full((1,), len(self.slots))])
        return SequenceOffsets(starts, self.width, spare=1)

    @cached_property
    def positions(self) -> Tensor:
        """Of each token in its sequence, (1, N)."""
        return (self.slots % max(1, self.width))[None]

    def unpad(self, x: Tensor) -> Tensor:
        """(B, T, ...) -> (1, N, ...)"""
        return _Move.apply(x.flatten(0, 1), self.slots, None)[None]

    def pad(self, x: Tensor) -> Tensor:
        """(1, N, ...) -> (B, T, ...), zeros at padding."""
        shape = len(self.lengths), self.width
        return _Move.apply(x[0], self.slots, shape[0] * shape[1]).unflatten(0, shape)

    def subset(self, chosen: Tensor) -> UnpaddedTokens:
        """The tokens where (B, T) is true.

        Raises:
            ValueError: it is true at padding.
        """
        indices = chosen.flatten().nonzero()[:, 0]
        numbers = torch.searchsorted(self.tokens, indices)
        if not torch.equal(self.tokens[numbers.clamp(max=len(self.tokens) - 1)], indices):
            raise ValueError("`chosen` is true at padding, behind the end of a sequence.")
        counts = chosen.sum(1)
        width = max(counts.tolist(), default=0)
        return UnpaddedTokens(numbers, UnpaddedLayout(counts, width, multiple=1))

    def first_tokens(self) -> UnpaddedTokens:
        """The first token of each sequence, none of which may be empty."""
        starts = self.offsets.starts[:-2]
        return UnpaddedTokens(starts, UnpaddedLayout(torch.ones_like(starts), 1, multiple=1))


class _Move(torch.autograd.Function):
    """`index_select`, or where `count` is given `index_copy` into so many rows of zeros.

    No index occurs twice, so the backward pass is the other of the two; torch's own gradient of
    `index_select` adds up, which is slower.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, slots: Tensor, count: int | None) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.back = x.size(0) if count is None else None
        if count is None:
            return x.index_select(0, slots)
        return x.new_zeros(count, *x.shape[1:]).index_copy_(0, slots, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _Move.apply(grads[0], ctx.saved_tensors[0], ctx.back), None, None


# ------------------------------------------------------------------------------------------ batches


IGNORE = -100  # a target with this value is not predicted: no loss, no count


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """On another device. From pinned memory a GPU fetches it while the processor goes on."""
    if tensor.device.type == "cpu" and torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@runtime_checkable
class HasRows(Protocol):
    """A batch whose rows can be selected, so that several processes can divide it."""

    def __len__(self) -> int: ...
    def select(self, rows: Tensor) -> Any: ...


@dataclass(frozen=True, eq=False)
class Sequences:
    """A batch of sequences, padded on the right or without padding.

    ids: (B, T) int64; without padding the sequences lie one behind the other, (1, N).
    lengths: (B,) int64.
    segments: int64, as `ids`: which of several texts each token belongs to, for encoders that
        distinguish them (BERT's token types); None: all tokens belong to the first.
    extras: what else an encoder has put into its own batch, by name, (B, T, ...): the characters
        of each word, a permutation mask and targets, indices of paragraphs and sentences.
    layout: of a batch without padding; None: it is padded.
    """

    ids: Tensor
    lengths: Tensor
    segments: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    layout: UnpaddedLayout | None = None

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]], pad: int | None) -> Sequences:
        """Rows of any lengths (empty ones too), padded with the id `pad` to the longest.

        Where the vocabulary has no padding token (None, as in GPT-2), 0 stands there; nothing
        reads it.
        """
        rows = list(rows)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.full((len(rows), int(lengths.max(initial=0))), pad or 0, np.int64)
        for row, values in zip(ids, rows, strict=True):
            row[: len(values)] = values
        return cls(torch.from_numpy(ids), torch.from_numpy(lengths))

    @classmethod
    def full(cls, ids: Tensor) -> Sequences:
        """Ids (B, T) without any padding among them."""
        return cls(ids, ids.new_full(ids.shape[:1], ids.size(1)))

    @classmethod
    def dummy(cls, count: int, length: int) -> Sequences:
        """`count` sequences of `length` arbitrary ids, to estimate the cost of a batch."""
        return cls(torch.ones(count, length, dtype=torch.long), torch.full((count,), length))

    @property
    def width(self) -> int:
        """T: of the padded batch."""
        return self.ids.size(1) if self.layout is None else self.layout.width

    @property
    def positions(self) -> Tensor:
        """Of each token in its sequence: (T,), or (1, N) without padding."""
        if self.layout is None:
            return torch.arange(self.ids.size(1), device=self.ids.device)
        return self.layout.positions

    @property
    def keep(self) -> Tensor:
        """(B, T) bool, True where there is a token and False where there is padding."""
        return torch.arange(self.width, device=self.lengths.device) < self.lengths[:, None]

    def __len__(self) -> int:
        """The number of sequences, B."""
        return self.lengths.size(0)

    # ---- layouts

    def unpadded(self) -> Sequences:
        """The same sequences without padding, on a CPU: (B, T) -> (1, N).

        Raises:
            ValueError: this batch has no padding.
        """
        if self.layout is not None:
            raise ValueError("This batch is unpadded already.")
        layout = UnpaddedLayout(self.lengths, self.ids.size(1))
        return self._map(layout.unpad, layout)

    def pad(self, hidden: Tensor) -> Tensor:
        """What was computed of this batch, (B, T, ...) or (1, N, ...), as (B, T, ...)."""
        return hidden if self.layout is None else self.layout.pad(hidden)

    def first_tokens(self) -> TokenSubset:
        """The first token of each sequence, none of which may be empty."""
        return FirstTokens() if self.layout is None else self.layout.first_tokens()

    def first(self, hidden: Tensor) -> Tensor:
        """Hidden states of the first tokens: (B, T, D) or (1, N, D) -> (B, D)."""
        return self.first_tokens().of(hidden).reshape(self.lengths.size(0), hidden.size(-1))

    def last(self, hidden: Tensor) -> Tensor:
        """Hidden states of the last tokens: (B, T, D) or (1, N, D) -> (B, D); no sequence may be
        empty.
        """
        if self.layout is None:
            return hidden[torch.arange(hidden.size(0), device=hidden.device), self.lengths - 1]
        return hidden[0, self.layout.offsets.starts[1:-1] - 1]

    def mean(self, hidden: Tensor) -> Tensor:
        """Means over the tokens of each sequence: (B, T, D) or (1, N, D) -> (B, D)."""
        states = self.pad(hidden) * self.keep[..., None].to(hidden.dtype)
        return states.sum(1) / self.lengths.clamp(min=1)[:, None].to(hidden.dtype)

    def next_ids(self) -> Tensor:
        """What follows each token in its sequence, as `ids`; `IGNORE` behind the last one."""
        padded = self.pad(self.ids).roll(-1, 1)
        last = torch.arange(self.width, device=padded.device) >= self.lengths[:, None] - 1
        targets = padded.masked_fill(last, IGNORE)
        return targets if self.layout is None else self.layout.unpad(targets)

    # ---- masks

    def causal_mask(self) -> KeyMask:
        """Each token sees its own sequence up to itself; where the extra "bidirectional" (B,) says
        it, all of it. Padding stands behind all tokens.
        """
        if self.layout is None:
            mask = KeyMask.causal(self.ids.size(1), self.ids.device)
            whole = self.extras.get("bidirectional")
            if whole is None or mask.grid is None:
                return mask
            return KeyMask((mask.grid | whole[:, None, None, None]) & self.keep[:, None, None])
        offsets = self.layout.offsets
        return KeyMask(unpadded=UnpaddedMask(offsets, offsets, causal=True))

    def padding_mask(self, queries: Sequences | None = None) -> KeyMask:
        """Each token of `queries`, by default of this batch, sees every token of its sequence here.

        Args:
            queries: the targets whose sources these sequences are.

        Raises:
            ValueError: one of the two batches is padded and the other is not.
        """
        layout = self.layout if queries is None else queries.layout
        if (self.layout is None) != (layout is None):
            raise ValueError("Source and target must both be padded, or both be unpadded.")
        if self.layout is None or layout is None:
            return KeyMask.padding(self.lengths, self.width)
        return KeyMask(unpadded=UnpaddedMask(layout.offsets, self.layout.offsets))

    # ---- sequences

    def select(self, rows: Tensor) -> Sequences:
        """The sequences of these indices: repeated, dropped or in another order; the width stays.

        Raises:
            ValueError: the batch is unpadded.
        """
        if self.layout is not None:
            raise ValueError("Sequences of an unpadded batch cannot be selected: pad it first.")
        return replace(self._map(lambda part: part[rows]), lengths=self.lengths[rows])

    def to(self, device: torch.device | str) -> Sequences:
        """The same sequences on another device."""
        moved_batch = self._map(lambda part: moved(part, device), self.layout)
        return replace(moved_batch, lengths=moved(self.lengths, device))

    def _map(
        self, change: Callable[[Tensor], Tensor], layout: UnpaddedLayout | None = None
    ) -> Sequences:
        """`change` of ids, segments and extras."""
        return Sequences(
            change(self.ids),
            self.lengths,
            None if self.segments is None else change(self.segments),
            {name: change(extra) for name, extra in self.extras.items()},
            layout,
        )


class RowBatch:
    """A dataclass whose tensors and sequences have a row for each of its B examples, and whose
    `count` is a cached property.
    """

    def select(self, rows: Tensor) -> Self:
        """The examples of these indices."""
        return self._map(lambda x: x.select(rows) if isinstance(x, Sequences) else x[rows])

    def to(self, device: torch.device | str) -> Self:
        """The same examples on another device; the count goes along, so nobody waits for it."""
        batch = self._map(lambda x: x.to(device) if isinstance(x, Sequences) else moved(x, device))
        vars(batch)["count"] = cast(Any, self).count
        return batch

    def _map(self, change: Callable[[Any], Any]) -> Self:
        parts = {n: x for n, x in vars(self).items() if isinstance(x, Tensor | Sequences)}
        return replace(cast(Any, self), **{name: change(part) for name, part in parts.items()})


@dataclass(frozen=True, eq=False)
class PairBatch(RowBatch):
    """Sentences and their translations, row by row.

    A target row is `bos … eos`: the decoder reads `target.ids[:, :-1]` and is to predict
    `target.ids[:, 1:]`.
    """

    source: Sequences
    target: Sequences

    @cached_property
    def count(self) -> int:
        """Predicted tokens: the sum over rows of the target's length minus one."""
        return int(self.target.lengths.sum()) - len(self.target)

    def __len__(self) -> int:
        """The number of pairs, B."""
        return len(self.target)


@dataclass(frozen=True, eq=False)
class StreamBatch(RowBatch):
    """A window over B texts read in parallel: `tokens` (B, T) and `targets` (B, T), the next ones.

    `fresh` says that the streams start (again): a state carried from the batch before must be
    dropped. Otherwise row b continues row b of the batch before. Targets of `IGNORE` do not count;
    they occur in the last column of a pass, where some streams are one token shorter.
    """

    tokens: Tensor
    targets: Tensor
    fresh: bool

    @cached_property
    def count(self) -> int:
        """Predicted tokens: B * T, less the targets to ignore."""
        return int((self.targets != IGNORE).sum())

    def __len__(self) -> int:
        """The number of streams, B."""
        return self.tokens.shape[0]


class Batches(Protocol):
    """Batches without end, epoch after epoch, that can stop anywhere and go on from there.

    The order depends on the seed alone. `restore(position())` on a source made with the same
    arguments gives exactly the batches that would have come, without computing those before.
    """

    @property
    def epoch(self) -> int: ...  # that of the batch that came last, from 0
    @property
    def batches_per_epoch(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...
    def position(self) -> dict[str, Any]: ...
    def restore(self, position: dict[str, Any]) -> None: ...
