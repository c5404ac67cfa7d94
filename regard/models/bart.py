"""BART: "Denoising Sequence-to-Sequence Pre-training" (Lewis et al. 2020).

The Transformer, post-norm, with other embeddings: source and target have learned positions of
their own, the sum of token and position is normalized, and it is not scaled. It was pre-trained to
restore text from which spans had been removed and whose sentences had been shuffled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.layers.positions import LearnedPositions
from regard.models.config import Activation, Size, TokenId
from regard.models.transformer import Transformer, TransformerConfig

OFFSET = 2  # rows of the tables of positions before that of the first position
INIT_RANGE = 0.02

_BASE: dict[str, Any] = dict(d_model=768, d_ff=3072, heads=12, encoder_layers=6, decoder_layers=6)
_LARGE: dict[str, Any] = dict(
    d_model=1024, d_ff=4096, heads=16, encoder_layers=12, decoder_layers=12
)


@dataclass(frozen=True)
class BartConfig(TransformerConfig):
    """The defaults are the base model; see `TransformerConfig`."""

    d_model: Size = 768
    d_ff: Size = 3072
    heads: Size = 12
    activation: Activation = "gelu"
    positions: Literal["learned"] = "learned"
    pad: TokenId = 1
    bos: TokenId = 2
    eos: TokenId = 2
    scale_embedding: bool = False


class Bart(Transformer):
    """BART, an `EncoderDecoder`."""

    Config = BartConfig
    SIZES = {"base": _BASE, "large": _LARGE}  # noqa: RUF012
    PUBLISHED = {}  # noqa: RUF012  # the paper prints no count

    def __init__(self, config: BartConfig):
        super().__init__(config)
        nn.init.normal_(self.embedding.weight, std=INIT_RANGE)
        self.positions, self.decoder_positions = (
            LearnedPositions(config.max_length, config.d_model, OFFSET) for _ in range(2)
        )
        for table in (self.positions, self.decoder_positions):
            nn.init.normal_(table.vectors.weight, std=INIT_RANGE)
        self.embedding_norm = nn.LayerNorm(config.d_model)
        self.decoder_embedding_norm = nn.LayerNorm(config.d_model)

    def embed_source(self, source: Sequences) -> Tensor:
        """norm(token + position), (B, S, D) or (1, N, D)."""
        words = self.words_of_source(source.ids)
        summed = words * self.scale + self.positions.of(source)
        return self.dropout(self.embedding_norm(summed))

    def embed_target(self, ids: Tensor, positions: Tensor) -> Tensor:
        """norm(token + position), (B, T, D) or (1, N, D)."""
        summed = self.embedding(ids) * self.scale + positions
        return self.dropout(self.decoder_embedding_norm(summed))
