"""MPNet: "Masked and Permuted Pre-training for Language Understanding" (Song et al. 2020).

    ids -> embed + positions -> norm -> L x [self-attention with a score bias, feed-forward]

RoBERTa's network without segments, and with T5's relative positions beside the absolute ones: a
learned number for each bucket of distances and each head, which all layers add to their scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.relative_bias import RelativeBias, two_sided_bucket
from regard.data.batches import Sequences
from regard.data.layout import ALL, TokenSubset
from regard.models.bert import BertBlock
from regard.models.init import init_weights
from regard.models.protocols import States
from regard.models.roberta import Roberta, RobertaConfig
from regard.ops import KeyMask


@dataclass(frozen=True)
class MpnetConfig(RobertaConfig):
    """The defaults are the base model; `segments` has no effect."""


class MpnetBlock(BertBlock):
    """x = norm(x + attend(x, bias)); x = norm(x + feed(x))"""

    def forward(  # type: ignore[override]
        self, hidden: Tensor, mask: KeyMask, bias: Tensor
    ) -> Tensor:
        attended = self.attention(hidden, mask, bias=bias)
        hidden = self.attention_norm(hidden, attended)
        return self.feed_norm(hidden, self.feed(hidden))


class Mpnet(Roberta):
    """MPNet without a head, an `Encoder`. It does not look at segments."""

    Config = MpnetConfig
    SIZES = {"base": dict(d_model=768, d_ff=3072, heads=12, layers=12)}  # noqa: RUF012
    PUBLISHED = {}  # noqa: RUF012  # the paper prints no number of parameters
    unpadded = False  # distances are those in a padded batch
    block = MpnetBlock

    def __init__(self, config: MpnetConfig):
        super().__init__(config)
        del self.segments
        self.relative = RelativeBias(config.heads, two_sided_bucket)
        init_weights(self.relative, config.init_range)

    @property
    def segment_types(self) -> int:
        """See `Encoder`."""
        return 1

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        """See `Encoder`."""
        hidden = self.embed(batch)
        yield hidden
        mask = batch.padding_mask()
        positions = torch.arange(batch.width, device=hidden.device)
        bias = self.relative(positions, positions)  # (1, H, T, T)
        for block in self.blocks[:-1]:
            hidden = block(hidden, mask, bias)
            yield hidden
        for block in self.blocks[-1:]:
            yield tokens.of(block(hidden, mask, bias))

    def embed(self, batch: Sequences) -> Tensor:
        """Token + position, (B, T, D)."""
        return self.dropout(self.norm(self.embedding(batch.ids) + self.positions.of(batch)))
