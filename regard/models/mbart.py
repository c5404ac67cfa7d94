"""mBART: "Multilingual Denoising Pre-training for NMT" (Liu et al. 2020).

BART with the norm before each sub-layer and a last norm after the encoder and the decoder. A token
beside each text names its language.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from regard.models.bart import Bart, BartConfig
from regard.models.config import Size
from regard.models.transformer_prenorm import PreNormDecoderBlock, PreNormEncoderBlock


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
