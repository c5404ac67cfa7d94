"""BigBird: "Transformers for Longer Sequences" (Zaheer et al. 2020).

    ids -> embed + positions + segments -> norm -> L x [sparse self-attention, feed-forward]

BERT whose tokens see, in blocks: their neighbours, the first and the last block of their sequence,
and some blocks at random, others in each layer and each head. The first and the last block see
everything. The cost grows with the length and not with its square. A sequence that has no more
blocks than a block of queries would see is read with full attention.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from regard.attention import block_sparse
from regard.attention.masks import padding
from regard.attention.multihead import PackedLinear
from regard.data.batches import ALL, Sequences, TokenSubset
from regard.layers.dropout import AddNorm, Dropout
from regard.layers.feedforward import FeedForward
from regard.layers.task_heads import ClassificationHead, dense_head, every_token
from regard.models.bert import BASE_AND_LARGE, Bert, BertBlock, BertConfig
from regard.models.config import Activation, Count, Size
from regard.models.protocols import States
from regard.ops import KeyMask

# From the index of a layer and the number of blocks of each sequence (B,) to the plan of
# `random_blocks`.
Plan = Callable[[int, Tensor], Tensor]
WINDOW = 1  # blocks on either side
ALWAYS = 2 * WINDOW + 3  # blocks that a block of queries sees beside the random ones


@dataclass(frozen=True)
class BigBirdConfig(BertConfig):
    """The defaults are the base model.

    attention: "block-sparse", or "full", every token to every other.
    block_size: tokens of a block.  random_blocks: that a block of queries sees in each head.
    random_seed: of the choice of these blocks.
    projection_bias: whether the projections to queries, keys and values add a vector.
    scaled_embedding: whether the vectors of tokens are multiplied by the root of their width.
    head_dropout: of the heads "classes" and "tags"; None: `dropout`, as that of the others.
    """

    max_length: Size = 4096
    positions: Literal["learned"] = "learned"
    activation: Activation = "gelu-tanh"
    attention: Literal["block-sparse", "full"] = "block-sparse"
    block_size: Size = 64
    random_blocks: Count = 3
    random_seed: Count = 0
    projection_bias: bool = True
    scaled_embedding: bool = False

    @property
    def full_length(self) -> int:
        """The tokens of the longest text that is read with full attention."""
        return (ALWAYS + 2 * self.random_blocks) * self.block_size


class BigBirdBlock(BertBlock):
    """x = norm(x + attend(x)); x = norm(x + feed(x))"""

    def __init__(self, config: BigBirdConfig):
        super().__init__(config)
        if not config.projection_bias:
            width = config.d_model
            self.attention.query_key_value = PackedLinear(width, width, parts=3, bias=False)


class SpanHead(ClassificationHead):
    """First and last token of an answer: W norm(h + feed(h))."""

    def __init__(self, config: BigBirdConfig):
        super().__init__(config.d_model, 2, pooling=every_token)
        self.feed_dropout = Dropout(config.dropout)
        self.feed = FeedForward(config.d_model, config.d_ff, activation=config.activation)
        self.feed_norm = AddNorm(config.d_model, eps=config.norm_eps, dropout=config.dropout)

    def scores(self, pooled: Tensor) -> Tensor:
        """(..., D) -> (..., 2)"""
        update = self.feed(self.feed_dropout(pooled))
        return self.output(self.feed_norm(pooled, update))


class BigBird(Bert):
    """BigBird: "Transformers for Longer Sequences" (Zaheer et al. 2020).

    BigBird without a head, an `Encoder`.

    Args:
        plan: which random blocks are seen; None: those that `random_seed` draws.
    """

    segments: nn.Embedding
    Config = BigBirdConfig
    SIZES = BASE_AND_LARGE
    unpadded = False  # blocks are those of padded sequences
    block = BigBirdBlock
    pooled = ("pooler", "next_sentence", "multiple_choice")

    def __init__(self, config: BigBirdConfig, plan: Plan | None = None):
        super().__init__(config)
        self.plan = plan or self.drawn_plan

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        hidden = self.embed(batch)
        yield hidden
        for layer, block in enumerate(self.blocks[:-1]):
            hidden = block(hidden, self.mask(batch, layer))
            yield hidden
        for block in self.blocks[-1:]:  # the last layer computes only `tokens`
            yield block(hidden, self.mask(batch, len(self.blocks) - 1), tokens)

    def embed(self, batch: Sequences) -> Tensor:
        """Token + position + segment, (B, T, D)."""
        segments = torch.zeros_like(batch.ids) if batch.segments is None else batch.segments
        words = self.embedding(batch.ids)
        if self.config.scaled_embedding:
            words = words * self.config.d_model**0.5
        summed = words + self.segments(segments) + self.positions.of(batch)
        return self.norm(self.dropout(summed))

    def mask(self, batch: Sequences, layer: int) -> KeyMask:
        """The mask of a layer (from 0), figure 1 of the paper."""
        config, lengths = self.config, batch.lengths
        size = config.block_size
        if config.attention == "full" or batch.width <= config.full_length:
            return batch.padding_mask()
        heads = list(cast(BigBirdBlock, self.blocks[layer]).attention.remaining_heads)
        plan = self.plan(layer, -(-lengths // size))
        pattern = (
            block_sparse.block_window(size, WINDOW)
            | block_sparse.global_blocks(size, lengths)
            | block_sparse.random_blocks(size, plan[:, heads] if plan.size(1) > 1 else plan)
            | block_sparse.full_if_short(lengths, config.full_length)
        )
        allowed, device = padding(lengths) & pattern, batch.ids.device
        return block_sparse.by_blocks(
            allowed, batch.width, size, sequences=len(batch), heads=len(heads), device=device
        )

    def drawn_plan(self, layer: int, blocks: Tensor) -> Tensor:
        """The random blocks of a layer, (B, H, N, R), for sequences of `blocks` (B,) blocks."""
        config = self.config
        seed = config.random_seed * max(1, config.layers) + layer
        return block_sparse.random_plan(blocks, config.heads, config.random_blocks, seed)

    def _head(self, kind: str, outputs: int) -> nn.Module:
        config = self.config
        width, dropout = config.d_model, config.dropout_of_heads
        match kind:
            case "classes":
                dropouts = dict(inner_dropout=dropout, dropout=dropout)
                return dense_head(width, outputs, config.activation, **dropouts)
            case "multiple_choice":
                return dense_head(width, outputs, "tanh", dropout=config.dropout)
            case "span":
                return SpanHead(cast(BigBirdConfig, config))
            case _:
                return super()._head(kind, outputs)
