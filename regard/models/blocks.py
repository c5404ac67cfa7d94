"""The blocks of a model, as decoders step through them and as encoders read whole texts.

Both go through one part, so that a model is made faster by putting another in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.unpadded import (
    MULTIPLE,
    FirstToken,
    TokenSubset,
    UnpaddedLayout,
    unpadded_layouts,
    unpadded_mask,
)
from regard.data.batches import Sequences
from regard.masks import causal, padding
from regard.ops import ALL_KEYS, KeyMask
from regard.state import KeyValueCache, SourceMemory

Embed = Callable[[Sequences], Tensor]
Chosen = Callable[[Iterator[Tensor]], Tensor]


@dataclass(frozen=True)
class Memory:
    """What one decoder layer reads of the source: (N, H, S, K) twice, and which keys are words."""

    key: Tensor
    value: Tensor
    allowed: KeyMask


class Blocks(nn.ModuleList):
    """Blocks one behind the other: `block(hidden, allowed, [memory,] remember)`."""

    remembered: torch.dtype | None = None  # of keys and values, where it is not that of the rest

    def cache(self, rows: int, heads: int, head_dim: int, like: Tensor) -> KeyValueCache:
        """For these blocks and rows that have read nothing, on the device of `like`."""
        like = like.to(self.remembered or like.dtype)
        return KeyValueCache.empty(rows, len(self), heads, head_dim, like=like)

    def memory(self, hidden: Tensor, lengths: Tensor) -> SourceMemory:
        """What blocks with a cross-attention read of sources (N, S, D) of these lengths (N,)."""
        blocks: Iterable[Any] = self
        layers = [block.cross.read(hidden) for block in blocks]
        keys, values = (self._stacked(list(parts)) for parts in zip(*layers, strict=True))
        return SourceMemory(keys, values, lengths)

    def read(
        self, hidden: Tensor, lengths: Tensor, source: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """(B, T, D) -> (B, T, D) of whole rows, in which each position sees those before it.

        In training the words of all rows lie end to end, so that nothing is computed of padding;
        what comes out in its places means nothing.

        Args:
            lengths: (B,) of the rows.
            source: what blocks with a cross-attention read, (B, S, D), and its lengths (B,).
        """
        memory = None if source is None else source[0]
        rows = [(lengths, hidden.size(1))]
        if source is not None:
            rows.append((source[1], source[0].size(1)))
        learning = self.training and hidden.device.type == "cpu"
        packings = unpadded_layouts(*rows) if learning else None
        if packings is None:
            count = hidden.size(1)
            allowed = causal().resolve(count, count, device=hidden.device)
            words = ALL_KEYS if source is None else source_words(*rows[1])
            return self._read(hidden, allowed, memory, words)
        targets, sources = packings[0], packings[-1]
        allowed, words = unpadded_mask(targets, causal=True), unpadded_mask(targets, sources)
        memory = None if memory is None else sources.flat(memory)
        return targets.padded(self._read(targets.flat(hidden), allowed, memory, words))

    def _read(
        self, hidden: Tensor, allowed: KeyMask, memory: Tensor | None, words: KeyMask
    ) -> Tensor:
        block: Any
        for block in self:
            if memory is None:
                hidden = block(hidden, allowed)
            else:
                key, value = block.cross.read(memory)
                hidden = block(hidden, allowed, Memory(key, value, words))
        return hidden

    def _stacked(self, layers: list[Tensor]) -> Tensor:
        """L times (N, H, S, K) -> (N, L, H, S, K); zeros where a layer has fewer heads."""
        rows, _, count, width = layers[0].shape
        shape = rows, len(self), max(layer.size(1) for layer in layers), count, width
        stacked = layers[0].new_zeros(shape, dtype=self.remembered)
        for at, layer in enumerate(layers):
            stacked[:, at, : layer.size(1)] = layer
        return stacked

    def decode(
        self, hidden: Tensor, cache: KeyValueCache, source: SourceMemory | None = None
    ) -> Tensor:
        """(R, T, D) -> (R, T, D) behind what the cache holds; it takes their keys and values.

        The cache has room for them, and is not advanced. A source is read by blocks that have a
        cross-attention, `cross`.
        """
        allowed = seen(cache, hidden.size(1))
        memories = None if source is None else self._memories(source, hidden)
        for layer, block in enumerate(self):
            memory = () if memories is None else (next(memories),)
            hidden = block(hidden, allowed, *memory, partial(cache.write, layer))
        return hidden

    def fill(self, hidden: Tensor, cache: KeyValueCache) -> None:
        """As `decode`, where only what the cache takes is wanted."""
        self.decode(hidden, cache)

    def _memories(self, source: SourceMemory, hidden: Tensor) -> Iterator[Memory]:
        """Of each layer, in the type of the hidden states."""
        words = source_words(source.lengths, source.keys.size(3))
        block: Any
        for layer, block in enumerate(self):
            key, value = source.layer(layer, block.cross.heads)
            yield Memory(key.to(hidden), value.to(hidden), words)


class Stack(nn.ModuleList):
    """Blocks in which every position sees every word of its row: `block(hidden, allowed)`.

    `embed` gives what the first one reads, (B, T, D): it is a method of the model. places: of a
    padded batch whose states stay in the caches of a CPU. In training the words of all rows lie end
    to end, so that nothing is computed of padding.
    """

    places = 1024

    def layers(self, embed: Embed, texts: Sequences) -> Iterator[Tensor]:
        """What the first block reads, and what each gives, (B, T, D)."""
        hidden, allowed = embed(texts), source_words(texts.lengths, texts.ids.size(1))
        yield hidden
        for block in self:
            hidden = block(hidden, allowed)
            yield hidden

    def read(self, embed: Embed, texts: Sequences) -> Tensor:
        """What the last block gives, (B, T, D)."""
        if packing := self._packing(texts):
            return packing.padded(self._packed(packing.flat(embed(texts)), packing, len(self)))
        for hidden in self.layers(embed, texts):  # noqa: B007
            pass
        return hidden

    def _packing(self, texts: Sequences, least: int = MULTIPLE) -> UnpaddedLayout | None:
        rows = texts.lengths, texts.ids.size(1)
        found = unpadded_layouts(rows, least=least) if self.training else None
        return None if found is None else found[0]

    def _packed(self, hidden: Tensor, packing: UnpaddedLayout, blocks: int) -> Tensor:
        """Through the first blocks, (1, N, D) -> (1, N, D)."""
        allowed = unpadded_mask(packing)
        for block in self[:blocks]:
            hidden = block(hidden, allowed)
        return hidden

    def first(self, embed: Embed, texts: Sequences) -> Tensor:
        """That for the first position alone, (B, 1, D): the last block computes no other."""
        packing = self._packing(texts)
        if packing and int(texts.lengths.min()):
            return self._some(embed(texts), packing, packing.first_tokens()).transpose(0, 1)
        block: Any
        hidden, allowed = embed(texts), source_words(texts.lengths, texts.ids.size(1))
        for block in self[:-1]:
            hidden = block(hidden, allowed)
        block = self[-1]
        return block.at(FirstToken(), hidden, allowed)

    def at(self, embed: Embed, texts: Sequences, places: Tensor) -> Tensor:
        """That for some places (B, T) of all rows, end to end: (M, D). See `Stacked.encode_at`."""
        if bool((places & ~texts.keep).any()):
            raise ValueError("`places` are asked for where rows have ended.")
        packing = self._packing(texts, least=0)
        if packing is None:
            return self.read(embed, texts)[places]
        return self._some(embed(texts), packing, packing.at(places))[0]

    def _some(self, hidden: Tensor, packing: UnpaddedLayout, some: TokenSubset) -> Tensor:
        """For some tokens alone, (B, T, D) -> (1, M, D)."""
        hidden = self._packed(packing.flat(hidden), packing, len(self) - 1)
        block: Any = self[-1]
        return block.at(some, hidden, unpadded_mask(packing))

    def chosen(self, embed: Embed, texts: Sequences, choice: Chosen) -> Tensor:
        """What is chosen of `layers`, for the words of all rows, end to end: (N, D)."""
        return choice(self.layers(embed, texts))[texts.keep]


def seen(cache: KeyValueCache, count: int) -> KeyMask:
    """What the next tokens may see of the cache and of each other."""
    if cache.longest == 0:
        return causal().resolve(count, count, device=cache.lengths.device)
    if count == 1 and cache.even:
        return ALL_KEYS
    return causal().resolve(
        cache.positions(count), cache.longest + count, device=cache.lengths.device
    )


def source_words(lengths: Tensor, longest: int) -> KeyMask:
    """Which positions of sources of these lengths are words."""
    return padding(lengths).resolve(1, longest, rows=lengths.size(0), device=lengths.device)
