"""The Transformer with layer norms before its parts, and M2M-100 (Fan et al. 2020)."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor, nn

from regard.attention.multihead import LayerCache, Memory
from regard.attention.relative_protocol import Relation
from regard.layers.dropout import Dropout
from regard.layers.positions import SinusoidalPositions, sinusoid_in_halves
from regard.models.config import Probability, Size, TokenId
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


@dataclass(frozen=True)
class M2M100Config(TransformerConfig):
    """The defaults are the model of 418M parameters; see `TransformerConfig`."""

    d_model: Size = 1024
    d_ff: Size = 4096
    heads: Size = 16
    encoder_layers: Size = 12
    decoder_layers: Size = 12
    attention_dropout: Probability = 0.1
    positions: Literal["sinusoidal"] = "sinusoidal"
    pad: TokenId = 1
    bos: TokenId = 2
    eos: TokenId = 2


def counted_from(first: int, positions: Tensor, d_model: int) -> Tensor:
    """`sinusoid_in_halves`, where `first` is the first position: (N,) -> (N, D)."""
    return sinusoid_in_halves(positions + first, d_model)


class M2M100(PreNormTransformer):
    """M2M-100 and NLLB, an `EncoderDecoder`."""

    Config = M2M100Config
    SIZES = {}  # noqa: RUF012

    def __init__(self, config: M2M100Config):
        super().__init__(config)
        vectors = partial(counted_from, config.pad + 1)
        self.positions = SinusoidalPositions(config.d_model, vectors)
