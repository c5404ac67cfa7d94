"""The published layout of M2M-100 and NLLB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.checkpoints.formats.config_table import activation, dropout, unsupported
from regard.checkpoints.formats.encoder_decoder_layout import (
    FIELDS,
    EncoderDecoderLayout,
    Order,
    last_norms,
    scale_embedding,
    token_fields,
)
from regard.models.transformer import TransformerConfig
from regard.models.transformer_prenorm import M2M100


class M2M100Layout(EncoderDecoderLayout):
    """A layout whose padding has no position."""

    def read_config(self, config: Mapping[str, Any]) -> TransformerConfig:
        found = super().read_config(config)
        if found.bos == found.pad:  # their program skips it when it counts positions
            must = f"another id than `pad_token_id` ({found.pad})"
            raise unsupported("decoder_start_token_id", must, found.bos)
        return found


M2M_100 = M2M100Layout(
    M2M100,
    "m2m_100",
    "M2M100",
    "M2M100ForConditionalGeneration",
    [*Order().blocks(), *last_norms(Order())],
    {
        **FIELDS,
        "attention_dropout": dropout("attention_dropout", 0.1),
        "activation": activation("activation_function", "relu"),
        "scale_embedding": scale_embedding(True),
        **token_fields(128112, pad=1, start=2, eos=2),
    },
    biased=False,
    others=("M2M100Model",),
    usual={
        "normalize_before": True,
        "add_final_layer_norm": True,
        "normalize_embedding": False,
        "static_position_embeddings": True,
        "add_bias_logits": False,
    },
    computed=("model.encoder.embed_positions.weights", "model.decoder.embed_positions.weights"),
)
