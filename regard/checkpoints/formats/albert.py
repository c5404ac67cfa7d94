"""ALBERT's published layout: groups of layers, factorized embeddings, its own heads."""

from regard.checkpoints.formats import bert
from regard.checkpoints.formats.config_table import (
    ConfigTable,
    Field,
    activation,
    dropout,
)
from regard.checkpoints.formats.encoder_layout import (
    CLASSIFIER,
    TOKEN_HEADS,
    EncoderLayout,
    HeadLayout,
    affine,
    masked_lm,
    packed,
)
from regard.models.bert import Albert
from regard.models.config import Size

LAYER, OURS = "encoder.albert_layer_groups.{layer}.albert_layers.0", "blocks.{layer}"
BODY = [
    ("embedding.weight", "embeddings.word_embeddings.weight"),
    ("positions.vectors.weight", "embeddings.position_embeddings.weight"),
    ("segments.weight", "embeddings.token_type_embeddings.weight"),
    *affine("norm", "embeddings.LayerNorm"),
    *affine("project", "encoder.embedding_hidden_mapping_in"),
    *packed(
        f"{OURS}.attention.query_key_value",
        [f"{LAYER}.attention.{part}" for part in ("query", "key", "value")],
    ),
    *affine(f"{OURS}.attention.output", f"{LAYER}.attention.dense"),
    *affine(f"{OURS}.attention_norm", f"{LAYER}.attention.LayerNorm"),
    *affine(f"{OURS}.feed.inner", f"{LAYER}.ffn"),
    *affine(f"{OURS}.feed.outer", f"{LAYER}.ffn_output"),
    *affine(f"{OURS}.feed_norm", f"{LAYER}.full_layer_layer_norm"),
]
FIELDS = bert.FIELDS | {
    "vocab_size": Field("vocab_size", 30000, Size),
    "d_model": Field("hidden_size", 4096, Size),
    "d_ff": Field("intermediate_size", 16384, Size),
    "heads": Field("num_attention_heads", 64, Size),
    "d_embedding": Field("embedding_size", 128, Size),
    "groups": Field("num_hidden_groups", 1, Size),
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

ALBERT = EncoderLayout(
    model=Albert,
    family="Albert",
    model_type="albert",
    config=ConfigTable(
        FIELDS,
        bert.FIXED | {"inner_group_num": (1,)},  # as in all published files
        [*bert.SILENT, *UNUSED],
        only={"layers_per_group": 1},
    ),
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
