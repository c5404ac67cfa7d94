"""The Transformer with the norm before each sub-layer ("pre-norm", Wang et al. 2019).

x = x + f(norm(x)), and one norm after the last layer. The residual path is never normalized, so
that deep stacks train without warm-up; everything else is the Transformer's.
"""

from __future__ import annotations

from torch import Tensor, nn

from regard.attention.multihead import LayerCache, Memory
from regard.attention.relative_protocol import Relation
from regard.layers.dropout import Dropout
from regard.models.transformer import (
    DecoderBlock,
    EncoderBlock,
    Transformer,
    TransformerConfig,
)
from regard.ops import KeyMask


def plain_norm(config: TransformerConfig) -> nn.LayerNorm:
    """norm(x), before each sub-layer; the sum is another part's."""
    return nn.LayerNorm(config.d_model)


class PreNormEncoderBlock(EncoderBlock):
    """x = x + attend(norm(x)); x = x + feed(norm(x))"""

    norm = staticmethod(plain_norm)

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, hidden: Tensor, mask: KeyMask, relation: Relation | None = None) -> Tensor:
        attended = self.attention(self.attention_norm(hidden), mask, relation=relation)
        hidden = hidden + self.dropout(attended)
        return hidden + self.dropout(self.feed(self.feed_norm(hidden)))


class PreNormDecoderBlock(DecoderBlock):
    """x = x + attend(norm(x)); x = x + cross(norm(x), memory); x = x + feed(norm(x))"""

    norm = staticmethod(plain_norm)

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask,
        memory: Memory,
        *,
        relation: Relation | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        normed = self.attention_norm(hidden)
        attended = self.attention(normed, mask, relation=relation, cache=cache)
        hidden = hidden + self.dropout(attended)
        hidden = hidden + self.dropout(self.cross(self.cross_norm(hidden), memory))
        return hidden + self.dropout(self.feed(self.feed_norm(hidden)))


class PreNormTransformer(Transformer):
    """The pre-norm Transformer, an `EncoderDecoder`."""

    PUBLISHED = {}  # noqa: RUF012  # the printed figures are those of the post-norm model
    encoder_block = PreNormEncoderBlock
    decoder_block = PreNormDecoderBlock

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        self.encoder_norm = nn.LayerNorm(config.d_model)
        self.decoder_norm = nn.LayerNorm(config.d_model)

    def finish_encoder(self, hidden: Tensor) -> Tensor:
        """The final norm: (B, T, D), same."""
        return self.encoder_norm(hidden)

    def finish_decoder(self, hidden: Tensor) -> Tensor:
        """The final norm: (B, T, D), same."""
        return self.decoder_norm(hidden)
