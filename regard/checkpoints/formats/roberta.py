"""The published layouts of RoBERTa (BERT's body, its own heads), of XLM-R and CamemBERT, which are
RoBERTa under other names, and of MPNet: RoBERTa's heads on a body with names of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from regard.checkpoints.formats import bert
from regard.checkpoints.formats.config_table import ConfigTable, Field, TokenField, unsupported
from regard.checkpoints.formats.encoder_layout import (
    CLASSIFIER,
    TOKEN_HEADS,
    TWO_LAYERS,
    EncoderLayout,
    HeadLayout,
    affine,
    masked_lm,
    packed,
)
from regard.models.config import Epsilon, Size, TokenId
from regard.models.roberta import Mpnet, Roberta, XlmRoberta


@dataclass(frozen=True)
class RobertaPositionFields(ConfigTable):
    """Theirs counts vectors of positions, and ours tokens: `pad + 1` vectors belong to none."""

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The options of our configuration."""
        options = super().read(config)
        vectors = options["max_length"]
        options["max_length"] = vectors - options["pad"] - 1
        if options["max_length"] < 1:
            must = f"more than `pad_token_id` + 1 ({options['pad'] + 1})"
            raise unsupported("max_position_embeddings", must, vectors)
        return options

    def write(self, config: Any) -> dict[str, Any]:
        """Their fields for our configuration."""
        return super().write(config) | {
            "max_position_embeddings": config.max_length + config.pad + 1
        }


FIELDS = bert.FIELDS | {
    "vocab_size": Field("vocab_size", 50265, Size),
    "pad": TokenField(
        "pad_token_id", 1, TokenId
    ),  # positions are counted from it: there must be one
}
POOLER = affine("inner.dense", "roberta.pooler.dense")

ROBERTA = EncoderLayout(
    model=Roberta,
    family="Roberta",
    model_type="roberta",
    config=RobertaPositionFields(FIELDS, bert.FIXED, bert.SILENT),
    prefix="roberta.",
    body=bert.BODY,
    ignored=bert.IGNORED,
    heads={
        "pooler": HeadLayout(POOLER),
        "masked_lm": masked_lm(
            "lm_head.dense",
            "lm_head.layer_norm",
            "lm_head.decoder",
            "lm_head.bias",
            "roberta.embeddings.word_embeddings.weight",
        ),
        "classes": TWO_LAYERS,
        **TOKEN_HEADS,
        "multiple_choice": HeadLayout([*POOLER, *CLASSIFIER]),
    },
    unsupported_architectures={"RobertaForCausalLM": bert.CAUSAL},
)


MPNET_LAYER = "encoder.layer.{layer}"
MPNET_BODY = [
    ("embedding.weight", "embeddings.word_embeddings.weight"),
    ("positions.vectors.weight", "embeddings.position_embeddings.weight"),
    ("relative.values.weight", "encoder.relative_attention_bias.weight"),
    *affine("norm", "embeddings.LayerNorm"),
    *packed(
        "blocks.{layer}.attention.query_key_value",
        [f"{MPNET_LAYER}.attention.attn.{part}" for part in "qkv"],
    ),
    *affine("blocks.{layer}.attention.output", f"{MPNET_LAYER}.attention.attn.o"),
    *affine("blocks.{layer}.attention_norm", f"{MPNET_LAYER}.attention.LayerNorm"),
    *affine("blocks.{layer}.feed.inner", f"{MPNET_LAYER}.intermediate.dense"),
    *affine("blocks.{layer}.feed.outer", f"{MPNET_LAYER}.output.dense"),
    *affine("blocks.{layer}.feed_norm", f"{MPNET_LAYER}.output.LayerNorm"),
]
OWN_FIELDS = {
    "vocab_size": Field("vocab_size", 30527, Size),
    "norm_eps": Field("layer_norm_eps", 1e-12, Epsilon),
    "pad": Field("pad_token_id", 1, names={1: 1}),
}
# Their program counts positions from 1 and distances in 32 buckets, whatever the fields say.
MPNET_FIXED = {"relative_attention_num_buckets": (32,)}
SHARED = {name: field for name, field in FIELDS.items() if name not in ("segments", "head_dropout")}
MPNET_POOLER = affine("inner.dense", "mpnet.pooler.dense")
MASKED_LM = ROBERTA.heads["masked_lm"]

MPNET = EncoderLayout(
    model=Mpnet,
    family="MPNet",
    model_type="mpnet",
    config=RobertaPositionFields({**SHARED, **OWN_FIELDS}, MPNET_FIXED, bert.SILENT),
    prefix="mpnet.",
    body=MPNET_BODY,
    adapted=("q", "v"),
    ignored=["embeddings.position_ids"],
    heads={
        **ROBERTA.heads,
        "pooler": HeadLayout(MPNET_POOLER),
        "masked_lm": replace(
            MASKED_LM,
            duplicates={"lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight"},
        ),
        "multiple_choice": HeadLayout([*MPNET_POOLER, *CLASSIFIER]),
    },
)


XLM_ROBERTA = replace(
    ROBERTA,
    model=XlmRoberta,
    family="XLMRoberta",
    model_type="xlm-roberta",
    unsupported_architectures={"XLMRobertaForCausalLM": bert.CAUSAL},
)
CAMEMBERT = replace(
    ROBERTA,
    family="Camembert",
    model_type="camembert",
    unsupported_architectures={"CamembertForCausalLM": bert.CAUSAL},
)
