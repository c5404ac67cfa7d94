"""DistilBERT's published layout: names, configuration, heads."""

from regard.checkpoints.formats.config_table import (
    ConfigTable,
    Field,
    TokenField,
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
from regard.models.bert import DistilBert
from regard.models.config import Count, InitScale, Size, TokenId

LAYER = "transformer.layer.{layer}"
BODY = [
    ("embedding.weight", "embeddings.word_embeddings.weight"),
    ("positions.vectors.weight", "embeddings.position_embeddings.weight"),
    *affine("norm", "embeddings.LayerNorm"),
    *packed(
        "blocks.{layer}.attention.query_key_value",
        [f"{LAYER}.attention.{part}_lin" for part in "qkv"],
    ),
    *affine("blocks.{layer}.attention.output", f"{LAYER}.attention.out_lin"),
    *affine("blocks.{layer}.attention_norm", f"{LAYER}.sa_layer_norm"),
    *affine("blocks.{layer}.feed.inner", f"{LAYER}.ffn.lin1"),
    *affine("blocks.{layer}.feed.outer", f"{LAYER}.ffn.lin2"),
    *affine("blocks.{layer}.feed_norm", f"{LAYER}.output_layer_norm"),
]

FIELDS = {
    "vocab_size": Field("vocab_size", 30522, Size),
    "d_model": Field("dim", 768, Size),
    "d_ff": Field("hidden_dim", 3072, Size),
    "heads": Field("n_heads", 12, Size),
    "layers": Field("n_layers", 6, Count),
    "max_length": Field("max_position_embeddings", 512, Size),
    "sinusoidal": Field("sinusoidal_pos_embds", False, bool),
    "activation": activation("activation", "gelu"),
    "dropout": dropout("dropout", 0.1),
    "attention_dropout": dropout("attention_dropout", 0.1),
    "classes_dropout": dropout("seq_classif_dropout", 0.2),
    "span_dropout": dropout("qa_dropout", 0.1),
    "init_range": Field("initializer_range", 0.02, InitScale),
    "tied": Field("tie_word_embeddings", True, bool),
    "pad": TokenField("pad_token_id", 0, TokenId | None),
}
# Ids that only generation and their tokenizer read; and how their training shared the output.
SILENT = ["bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "tie_weights_"]
ALIASES = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
}

INNER = affine("inner.dense", "pre_classifier")

DISTILBERT = EncoderLayout(
    model=DistilBert,
    family="DistilBert",
    model_type="distilbert",
    config=ConfigTable(FIELDS, {}, SILENT, ALIASES),
    prefix="distilbert.",
    body=BODY,
    adapted=("q_lin", "v_lin"),
    ignored=["embeddings.position_ids"],
    heads={
        "masked_lm": masked_lm(
            "vocab_transform",
            "vocab_layer_norm",
            "vocab_projector",
            "vocab_projector.bias",
            "distilbert.embeddings.word_embeddings.weight",
            has_twin=False,
        ),
        "classes": HeadLayout([*INNER, *CLASSIFIER]),
        **TOKEN_HEADS,
        "multiple_choice": HeadLayout([*INNER, *CLASSIFIER]),
    },
)
