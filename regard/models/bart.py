"""BART (Lewis et al. 2020) and mBART (Liu et al. 2020): the Transformer with learned positions."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.layers.positions import LearnedPositions
from regard.models.config import Activation, Size, TokenId
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.transformer_prenorm import PreNormDecoderBlock, PreNormEncoderBlock

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


@dataclass(frozen=True)
class MBartConfig(BartConfig):
    """The defaults are the sizes of all published models."""

    d_model: Size = 1024
    d_ff: Size = 4096
    heads: Size = 16
    encoder_layers: Size = 12
    decoder_layers: Size = 12


class MBart(Bart):
    """mBART, an `EncoderDecoder`."""

    Config = MBartConfig
    SIZES = {}  # noqa: RUF012
    encoder_block = PreNormEncoderBlock
    decoder_block = PreNormDecoderBlock

    def __init__(self, config: MBartConfig):
        super().__init__(config)
        self.encoder_norm = nn.LayerNorm(config.d_model)
        self.decoder_norm = nn.LayerNorm(config.d_model)

    def finish_encoder(self, hidden: Tensor) -> Tensor:
        """The final norm: (B, T, D), same."""
        return self.encoder_norm(hidden)

    def finish_decoder(self, hidden: Tensor) -> Tensor:
        """The final norm: (B, T, D), same."""
        return self.decoder_norm(hidden)
