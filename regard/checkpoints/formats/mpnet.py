"""MPNet's published layout: RoBERTa's heads on a body with names of its own."""

from __future__ import annotations

from dataclasses import replace

from regard.checkpoints.formats import bert
from regard.checkpoints.formats.config_table import Field
from regard.checkpoints.formats.encoder_layout import EncoderLayout, HeadLayout, affine, packed
from regard.checkpoints.formats.roberta import FIELDS, ROBERTA, RobertaPositionFields
from regard.models.config import Epsilon, Size
from regard.models.mpnet import Mpnet

LAYER = "encoder.layer.{layer}"
BODY = [
    ("embedding.weight", "embeddings.word_embeddings.weight"),
    ("positions.vectors.weight", "embeddings.position_embeddings.weight"),
    ("relative.values.weight", "encoder.relative_attention_bias.weight"),
    *affine("norm", "embeddings.LayerNorm"),
    *packed(
        "blocks.{layer}.attention.query_key_value",
        [f"{LAYER}.attention.attn.{part}" for part in "qkv"],
    ),
    *affine("blocks.{layer}.attention.output", f"{LAYER}.attention.attn.o"),
    *affine("blocks.{layer}.attention_norm", f"{LAYER}.attention.LayerNorm"),
    *affine("blocks.{layer}.feed.inner", f"{LAYER}.intermediate.dense"),
    *affine("blocks.{layer}.feed.outer", f"{LAYER}.output.dense"),
    *affine("blocks.{layer}.feed_norm", f"{LAYER}.output.LayerNorm"),
]
OWN_FIELDS = {
    "vocab_size": Field("vocab_size", 30527, Size),
    "norm_eps": Field("layer_norm_eps", 1e-12, Epsilon),
    "pad": Field("pad_token_id", 1, names={1: 1}),
}
# Their program counts positions from 1 and distances in 32 buckets, whatever the fields say.
FIXED = {"relative_attention_num_buckets": (32,)}
SHARED = {name: field for name, field in FIELDS.items() if name not in ("segments", "head_dropout")}
POOLER = affine("inner.dense", "mpnet.pooler.dense")
MASKED_LM = ROBERTA.heads["masked_lm"]

MPNET = EncoderLayout(
    model=Mpnet,
    family="MPNet",
    model_type="mpnet",
    config=RobertaPositionFields({**SHARED, **OWN_FIELDS}, FIXED, bert.SILENT),
    prefix="mpnet.",
    body=BODY,
    adapted=("q", "v"),
    ignored=["embeddings.position_ids"],
    heads={
        **ROBERTA.heads,
        "pooler": HeadLayout(POOLER),
        "masked_lm": replace(
            MASKED_LM,
            duplicates={"lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight"},
        ),
        "multiple_choice": HeadLayout([*POOLER, *bert.CLASSIFIER]),
    },
)
