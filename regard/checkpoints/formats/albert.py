"""ALBERT's published layout: groups of layers, factorized embeddings, its own heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard.checkpoints.formats import bert
from regard.checkpoints.formats.config_table import (
    ConfigTable,
    Field,
    activation,
    dropout,
    unsupported,
)
from regard.checkpoints.formats.encoder_layout import (
    CLASSIFIER,
    TOKEN_HEADS,
    EncoderLayout,
    HeadLayout,
    Rows,
    affine,
    masked_lm,
    packed,
)
from regard.models.albert import Albert
from regard.models.config import LARGEST_SIZE, Size


def blocks(ours: str, theirs: str) -> Rows:
    """The rows of a block, or of all blocks where the names have a placeholder."""
    attention = f"{theirs}.attention"
    return [
        *packed(
            f"{ours}.attention.query_key_value",
            [f"{attention}.{part}" for part in ("query", "key", "value")],
        ),
        *affine(f"{ours}.attention.output", f"{attention}.dense"),
        *affine(f"{ours}.attention_norm", f"{attention}.LayerNorm"),
        *affine(f"{ours}.feed.inner", f"{theirs}.ffn"),
        *affine(f"{ours}.feed.outer", f"{theirs}.ffn_output"),
        *affine(f"{ours}.feed_norm", f"{theirs}.full_layer_layer_norm"),
    ]


EMBEDDINGS = [
    ("embedding.weight", "embeddings.word_embeddings.weight"),
    ("positions.vectors.weight", "embeddings.position_embeddings.weight"),
    ("segments.weight", "embeddings.token_type_embeddings.weight"),
    *affine("norm", "embeddings.LayerNorm"),
    *affine("project", "encoder.embedding_hidden_mapping_in"),
]
GROUPS, LAYERS = "encoder.albert_layer_groups", "albert_layers"
BODY = [*EMBEDDINGS, *blocks("blocks.{layer}", f"{GROUPS}.{{layer}}.{LAYERS}.0")]


@dataclass(frozen=True)
class GroupFields(ConfigTable):
    """Theirs counts how often a text passes a group, and ours its layers."""

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The options of our configuration."""
        options = super().read(config)
        layers = options["layers"] * options["layers_per_group"]
        if layers > LARGEST_SIZE:
            raise unsupported("inner_group_num", "smaller", options["layers_per_group"])
        return options | {"layers": layers}

    def write(self, config: Any) -> dict[str, Any]:
        """Their fields for our configuration."""
        return super().write(config) | {
            "num_hidden_layers": config.layers // config.layers_per_group
        }


@dataclass(frozen=True)
class AlbertLayout(EncoderLayout):
    """Groups of several layers have further names."""

    def body_of(self, config: Any) -> Rows:
        if config.layers_per_group == 1:
            return self.body
        numbers = [
            divmod(number, config.layers_per_group) for number in range(config.distinct_layers)
        ]
        rows = [
            blocks(f"blocks.{number}", f"{GROUPS}.{group}.{LAYERS}.{layer}")
            for number, (group, layer) in enumerate(numbers)
        ]
        return [*EMBEDDINGS, *(row for block in rows for row in block)]


FIELDS = bert.FIELDS | {
    "vocab_size": Field("vocab_size", 30000, Size),
    "d_model": Field("hidden_size", 4096, Size),
    "d_ff": Field("intermediate_size", 16384, Size),
    "heads": Field("num_attention_heads", 64, Size),
    "d_embedding": Field("embedding_size", 128, Size),
    "groups": Field("num_hidden_groups", 1, Size),
    "layers_per_group": Field("inner_group_num", 1, Size),
    "activation": activation("hidden_act", "gelu_new"),
    "dropout": dropout("hidden_dropout_prob", 0.0),
    "attention_dropout": dropout("attention_probs_dropout_prob", 0.0),
    "head_dropout": dropout("classifier_dropout_prob", 0.1),
}
# Of their own files: what neither their program nor `transformers` reads.
UNUSED = (
    *("down_scale_factor", "gap_size", "layers_to_keep", "net_structure_type"),
    "num_memory_blocks",
)
POOLER = affine("inner.dense", "albert.pooler")

ALBERT = AlbertLayout(
    model=Albert,
    family="Albert",
    model_type="albert",
    config=GroupFields(FIELDS, bert.FIXED, [*bert.SILENT, *UNUSED]),
    prefix="albert.",
    body=BODY,
    ignored=bert.IGNORED,
    heads={
        "pooler": HeadLayout(POOLER),
        "masked_lm": masked_lm(
            "predictions.dense",
            "predictions.LayerNorm",
            "predictions.decoder",
            "predictions.bias",
            "albert.embeddings.word_embeddings.weight",
        ),
        "sentence_order": HeadLayout([*POOLER, *affine("output", "sop_classifier.classifier")]),
        "classes": HeadLayout([*POOLER, *CLASSIFIER]),
        **TOKEN_HEADS,
        "multiple_choice": HeadLayout([*POOLER, *CLASSIFIER]),
    },
)
