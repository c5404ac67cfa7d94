"""ELECTRA's published layout: BERT's body, a projection, its own heads."""

from regard.checkpoints.formats import bert
from regard.checkpoints.formats.config_table import ConfigTable, Field, activation, dropout
from regard.checkpoints.formats.encoder_layout import (
    CLASSIFIER,
    TOKEN_HEADS,
    TWO_LAYERS,
    EncoderLayout,
    HeadLayout,
    affine,
    masked_lm,
)
from regard.models.config import Size
from regard.models.electra import Electra

FIELDS = bert.FIELDS | {
    "d_model": Field("hidden_size", 256, Size),
    "d_ff": Field("intermediate_size", 1024, Size),
    "heads": Field("num_attention_heads", 4, Size),
    "d_embedding": Field("embedding_size", 128, Size),
    "choice_activation": activation("summary_activation", "gelu"),
    "choice_dropout": dropout("summary_last_dropout", 0.1),
}
# How the head for choices sums up a text: its first token through a layer.
FIXED = bert.FIXED | {
    "summary_type": ("first",),
    "summary_use_proj": (True,),
    "summary_first_dropout": (0.0,),
    "summary_proj_to_labels": (False,),
}
PREDICTIONS = "discriminator_predictions"

ELECTRA = EncoderLayout(
    model=Electra,
    family="Electra",
    model_type="electra",
    config=ConfigTable(FIELDS, FIXED, bert.SILENT, only=bert.LEARNED),
    prefix="electra.",
    body=bert.BODY,
    projection=affine("project", "embeddings_project"),
    ignored=bert.IGNORED,
    heads={
        "replaced": HeadLayout(
            [
                *affine("inner.dense", f"{PREDICTIONS}.dense"),
                *affine("output", f"{PREDICTIONS}.dense_prediction"),
            ]
        ),
        "masked_lm": masked_lm(
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head",
            "generator_lm_head.bias",
            "electra.embeddings.word_embeddings.weight",
            has_twin=False,
        ),
        "classes": TWO_LAYERS,
        **TOKEN_HEADS,
        "multiple_choice": HeadLayout(
            [*affine("inner.dense", "sequence_summary.summary"), *CLASSIFIER]
        ),
    },
    unsupported_architectures={"ElectraForCausalLM": bert.CAUSAL},
)
