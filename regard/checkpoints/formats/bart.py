"""BART's published layout, and mBART's."""

from __future__ import annotations

from dataclasses import replace

from regard.checkpoints.formats.encoder_decoder_layout import (
    FIELDS,
    EncoderDecoderLayout,
    Order,
    last_norms,
    scale_embedding,
    token_fields,
)
from regard.models.bart import Bart
from regard.models.mbart import MBart

HEAD = "Heads on encoder-decoders are not supported; load the folder for generation"
CAUSAL = "Decoders without an encoder are not supported"
OLD = {"normalize_embedding": True, "static_position_embeddings": False, "add_bias_logits": False}
ROWS = [
    *Order().blocks(),
    ("positions.vectors.weight", "model.encoder.embed_positions.weight"),
    ("decoder_positions.vectors.weight", "model.decoder.embed_positions.weight"),
    *Order().norm("embedding_norm", "model.encoder.layernorm_embedding"),
    *Order().norm("decoder_embedding_norm", "model.decoder.layernorm_embedding"),
]


def without_support(family: str) -> dict[str, str]:
    """The architectures of a family that have another head, and why they cannot be read."""
    heads = ("ForSequenceClassification", "ForQuestionAnswering")
    return {f"{family}{head}": HEAD for head in heads} | {f"{family}ForCausalLM": CAUSAL}


BART = EncoderDecoderLayout(
    Bart,
    "bart",
    "Bart",
    "BartForConditionalGeneration",
    ROWS,
    FIELDS
    | {"scale_embedding": scale_embedding(False)}
    | token_fields(50265, pad=1, start=2, eos=2),
    others=("BartModel",),
    unsupported=without_support("Bart"),
    usual=OLD | {"normalize_before": False, "add_final_layer_norm": False},
)
MBART = replace(
    BART,
    model=MBart,
    model_type="mbart",
    family="MBart",
    architecture="MBartForConditionalGeneration",
    rows=[*ROWS, *last_norms(Order())],
    others=("MBartModel",),
    unsupported=without_support("MBart"),
    usual=OLD | {"normalize_before": True, "add_final_layer_norm": True},
)
