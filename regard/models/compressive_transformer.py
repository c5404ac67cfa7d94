"""Compressive Transformer: "Compressive Transformers for Long-Range Sequence Modelling" (Rae et al.
2019).

Transformer-XL whose oldest positions are not dropped: each layer makes one slot of c of them and
keeps N such slots, so that a token sees c N positions more for N keys more. Slots count as
positions in distances. What is compressed has no gradient, as the memory has none; a convolution
learns from the attention-reconstruction loss alone (section 3.2, algorithm 2):

    sum over layers of |A(h, old) - A(h, f(old))|_2,   A(h, m) = softmax((q + u) k^T / sqrt(K)) v

with q of the layer's input h, k and v of m: the content part of the layer's own attention, over the
positions that are compressed after this segment, and over the slots that take their place. h, old,
and the weights of the layer get no gradient from it: f alone does. The norm is that of each query's
vector, all heads together; the loss is its mean over the tokens of the batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention.carried_memory import CarriedMemory, CompressedMemory
from regard.errors import ConfigError
from regard.layers.pooling import MaxPooling, MeanPooling, StridedConvolution
from regard.models.config import Size
from regard.models.protocols import Output
from regard.models.transformer_xl import TransformerXL, TransformerXLConfig, init_transformer_xl

LOSS = "reconstruction"


@dataclass(frozen=True)
class CompressiveTransformerConfig(TransformerXLConfig):
    """compressed_length: N, the slots of compressed positions that a segment reads.

    compression_rate: c, the positions of a slot.
    compression: the convolution learns, mean and max pooling do not.

    The others are those of `TransformerXLConfig`; the memory starts empty.
    """

    compressed_length: Size = 150
    compression_rate: Size = 4
    compression: Literal["convolution", "mean", "max"] = "convolution"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.same_length:
            raise ConfigError("`same_length` must be false: compressed slots hold several tokens.")
        if self.memory_start != "empty":
            raise ConfigError('`memory_start` must be "empty" where the memory is compressed.')


def compression(config: CompressiveTransformerConfig) -> nn.Module:
    """f of one layer: (..., c, D) -> (..., D)."""
    match config.compression:
        case "mean":
            return MeanPooling()
        case "max":
            return MaxPooling()
        case _:
            return StridedConvolution(config.d_model, config.compression_rate)


class CompressiveTransformer(TransformerXL):
    """Compressive Transformer, a `LanguageModel` and an `Encoder`."""

    Config: type = CompressiveTransformerConfig
    SIZES: dict[str, Any] = {}  # noqa: RUF012
    PUBLISHED: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, config: CompressiveTransformerConfig):
        super().__init__(config)
        self.compressions = nn.ModuleList(compression(config) for _ in range(config.layers))
        init_transformer_xl(self.compressions, config.init_range)
        learns = any(True for _ in self.compressions.parameters())
        self.extras = (LOSS,) if learns else ()

    @property
    def sharded_parts(self) -> list[nn.Module]:
        """None: the reconstruction loss reads the weights of all layers, after they have run."""
        return []

    def forward(self, ids: Tensor, state: CarriedMemory | None = None) -> Output:
        """See `TransformerXL.forward`. In training the extra "reconstruction" is the sum of the
        reconstruction loss over the tokens.
        """
        before = self._memory_for(ids, state)
        *_, hidden = self._layers(ids, before)
        memory = before.advance(ids.size(1))
        oldest = memory.oldest_groups()
        compressed = self._compress(oldest)
        extras = {}
        if self.training and self.extras:
            extras[LOSS] = self._reconstruction(memory, ids.size(1), oldest, compressed)
        return Output(hidden, memory.compress(compressed.detach(), self._keys_and_values), extras)

    def prefill(
        self, tokens: Tensor, state: CarriedMemory, lengths: Tensor | None = None
    ) -> CarriedMemory:
        before = self._memory_for(tokens, state)
        for _ in self._layers(tokens, before):
            pass
        memory = before.advance(tokens.size(1), lengths)
        return memory.compress(self._compress(memory.oldest_groups()), self._keys_and_values)

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> CompressedMemory:
        base, config = super().empty(sequences, dtype), self.config
        capacity = config.compressed_length + config.memory_length + config.compression_rate - 1
        return CompressedMemory(
            **{**vars(base), "limit": capacity},
            single=torch.zeros_like(base.lengths),
            memory_length=config.memory_length,
            compressed_length=config.compressed_length,
            rate=config.compression_rate,
        )

    def _memory_for(self, ids: Tensor, state: CarriedMemory | None) -> CompressedMemory:
        memory = super()._memory_for(ids, state)
        assert isinstance(memory, CompressedMemory)
        return memory

    def _keys_and_values(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        return self.blocks[layer].keys_and_values(slots)

    def _compress(self, positions: Tensor) -> Tensor:
        """Layer by layer: (B, L, G, c, D) -> (B, L, G, D)."""
        layers = zip(self.compressions, positions.unbind(1), strict=True)
        return torch.stack([compress(groups) for compress, groups in layers], 1)

    def _reconstruction(
        self, memory: CarriedMemory, count: int, old: Tensor, compressed: Tensor
    ) -> Tensor:
        """Algorithm 2, summed over the `count` tokens of each sequence: ()."""
        segment = slice(memory.end - count, memory.end)
        total = compressed.new_zeros((), dtype=torch.float32)
        if not compressed.size(2):
            return total
        for n, block in enumerate(self.blocks):
            with frozen(block):
                query = block.content_queries(memory.hidden[:, n, segment])  # (B, H, T, K)
                expected = ops.attention(query, *block.keys_and_values(old[:, n].flatten(1, 2)))
                reconstructed = ops.attention(query, *block.keys_and_values(compressed[:, n]))
            difference = (expected - reconstructed).float()
            total = total + torch.linalg.vector_norm(difference, dim=(1, 3)).sum()
        return total


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """What is computed here gives no gradient to the parameters of a module."""
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)
