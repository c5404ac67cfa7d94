"""BERT's published layout: names, configuration, heads; and SegaBERT's, with three tables of
positions.

SegaBERT's folders say that they are BERT's (`model_type`), and most do not say how large the tables
are: their tensors tell both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

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
from regard.models.bert import Bert
from regard.models.config import Count, Epsilon, InitScale, Size, TokenId
from regard.models.segabert import SegaBert

LAYER = "encoder.layer.{layer}"
BLOCKS = [
    *packed(
        "blocks.{layer}.attention.query_key_value",
        [f"{LAYER}.attention.self.{part}" for part in ("query", "key", "value")],
    ),
    *affine("blocks.{layer}.attention.output", f"{LAYER}.attention.output.dense"),
    *affine("blocks.{layer}.attention_norm", f"{LAYER}.attention.output.LayerNorm"),
    *affine("blocks.{layer}.feed.inner", f"{LAYER}.intermediate.dense"),
    *affine("blocks.{layer}.feed.outer", f"{LAYER}.output.dense"),
    *affine("blocks.{layer}.feed_norm", f"{LAYER}.output.LayerNorm"),
]
BODY = [
    ("embedding.weight", "embeddings.word_embeddings.weight"),
    ("positions.vectors.weight", "embeddings.position_embeddings.weight"),
    ("segments.weight", "embeddings.token_type_embeddings.weight"),
    *affine("norm", "embeddings.LayerNorm"),
    *BLOCKS,
]
IGNORED = ["embeddings.position_ids", "embeddings.token_type_ids"]

FIELDS = {
    "vocab_size": Field("vocab_size", 30522, Size),
    "d_model": Field("hidden_size", 768, Size),
    "d_ff": Field("intermediate_size", 3072, Size),
    "heads": Field("num_attention_heads", 12, Size),
    "layers": Field("num_hidden_layers", 12, Count),
    "segments": Field("type_vocab_size", 2, Size),
    "max_length": Field("max_position_embeddings", 512, Size),
    "activation": activation("hidden_act", "gelu"),
    "dropout": dropout("hidden_dropout_prob", 0.1),
    "attention_dropout": dropout("attention_probs_dropout_prob", 0.1),
    "head_dropout": dropout("classifier_dropout", None),
    "norm_eps": Field("layer_norm_eps", 1e-12, Epsilon),
    "init_range": Field("initializer_range", 0.02, InitScale),
    "tied": Field("tie_word_embeddings", True, bool),
    "pad": TokenField("pad_token_id", 0, TokenId | None),
}
FIXED = {"position_embedding_type": ("absolute",)}
LEARNED = {"positions": "learned"}  # of their models, which have no field for others
SILENT = [
    # ids that only generation and their tokenizer read
    *("bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "mask_token_id"),
    # of the multilingual files: the sizes of a pooler that their own code never built
    *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
    *("pooler_size_per_head", "pooler_type"),
]

POOLER = affine("inner.dense", "bert.pooler.dense")
PREDICTIONS = "cls.predictions"
CAUSAL = "it predicts the next word from those before it, which no encoder here does"

BERT = EncoderLayout(
    model=Bert,
    family="Bert",
    model_type="bert",
    config=ConfigTable(FIELDS, FIXED, SILENT, only=LEARNED),
    prefix="bert.",
    body=BODY,
    ignored=IGNORED,
    heads={
        "pooler": HeadLayout(POOLER),
        "masked_lm": masked_lm(
            f"{PREDICTIONS}.transform.dense",
            f"{PREDICTIONS}.transform.LayerNorm",
            f"{PREDICTIONS}.decoder",
            f"{PREDICTIONS}.bias",
            "bert.embeddings.word_embeddings.weight",
        ),
        "next_sentence": HeadLayout([*POOLER, *affine("output", "cls.seq_relationship")]),
        "classes": HeadLayout([*POOLER, *CLASSIFIER]),
        **TOKEN_HEADS,
        "multiple_choice": HeadLayout([*POOLER, *CLASSIFIER]),
    },
    unsupported_architectures={"BertLMHeadModel": CAUSAL},
)


TABLES = {
    "paragraphs": "para_position_embeddings",
    "sentences": "sent_position_embeddings",
    "sentence_length": "token_position_embeddings",
}


@dataclass(frozen=True)
class SegaBertLayout(EncoderLayout):
    """BERT's, where the tensors say how large the tables of positions are."""

    def _adjusted(self, ours: Any, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
        sizes = {}
        for name, table in TABLES.items():
            tensor = tensors.get(f"{self.prefix}embeddings.{table}.weight")
            if tensor is not None and tensor.dim() and config.get(f"max_{table}") is None:
                sizes[name] = tensor.size(0)
        return replace(ours, **sizes)


SEGABERT = SegaBertLayout(
    model=SegaBert,
    family="Bert",
    model_type="bert",
    config=ConfigTable(
        FIELDS
        | {
            "paragraphs": Field("max_para_position_embeddings", 50, Size),
            "sentences": Field("max_sent_position_embeddings", 100, Size),
            "sentence_length": Field("max_token_position_embeddings", 512, Size),
        },
        FIXED,
        SILENT,
        only=LEARNED,
    ),
    prefix="bert.",
    body=[
        *(row for row in BODY if row[0] != "positions.vectors.weight"),
        ("positions.paragraph.weight", "embeddings.para_position_embeddings.weight"),
        ("positions.sentence.weight", "embeddings.sent_position_embeddings.weight"),
        ("positions.token.weight", "embeddings.token_position_embeddings.weight"),
    ],
    # BERT's own table is in their files, but nothing reads it.
    ignored=[*IGNORED, "embeddings.position_embeddings.weight"],
    heads=BERT.heads,
    unsupported_architectures=BERT.unsupported_architectures,
)
