"""M2M-100: "Beyond English-Centric Multilingual Machine Translation" (Fan et al. 2020), and NLLB:
"No Language Left Behind" (NLLB Team 2022).

The pre-norm Transformer with fairseq's sinusoids, of which the first position is the one after the
padding id. A token before each text names its language: 100 of them in M2M-100, 202 in NLLB.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from regard.layers.positions import SinusoidalPositions, sinusoid_in_halves
from regard.models.config import Probability, Size, TokenId
from regard.models.transformer import TransformerConfig
from regard.models.transformer_prenorm import PreNormTransformer


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
