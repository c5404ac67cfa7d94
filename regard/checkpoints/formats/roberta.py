"""RoBERTa's published layout: BERT's body, its own heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard.checkpoints.formats import bert
from regard.checkpoints.formats.config_table import ConfigTable, Field, TokenField, unsupported
from regard.checkpoints.formats.encoder_layout import TWICE, EncoderLayout, HeadLayout, affine
from regard.models.config import Size, TokenId
from regard.models.roberta import Roberta


@dataclass(frozen=True)
class RobertaPositionFields(ConfigTable):
    """Theirs counts vectors of positions, and ours tokens: `pad + 1` vectors belong to none."""

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The options of our configuration."""
        found = super().read(config)
        vectors = found["max_length"]
        found["max_length"] = vectors - found["pad"] - 1
        if found["max_length"] < 1:
            must = f"more than `pad_token_id` + 1 ({found['pad'] + 1})"
            raise unsupported("max_position_embeddings", must, vectors)
        return found

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
        "masked_lm": HeadLayout(
            [
                *affine("inner.dense", "lm_head.dense"),
                *affine("norm", "lm_head.layer_norm"),
                ("softmax.weight", "lm_head.decoder.weight"),
                ("softmax.bias", "lm_head.bias"),
            ],
            tied={"softmax.weight": "embedding.weight"},
            duplicates={"lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight"},
            twins={"lm_head.decoder.bias": "lm_head.bias"},
            untied=[("softmax.bias", ("lm_head.decoder.bias", "lm_head.bias"), TWICE)],
        ),
        "classes": HeadLayout(
            [*affine("inner.dense", "classifier.dense"), *affine("output", "classifier.out_proj")]
        ),
        "tags": HeadLayout(bert.CLASSIFIER),
        "span": HeadLayout(affine("output", "qa_outputs")),
        "multiple_choice": HeadLayout([*POOLER, *bert.CLASSIFIER]),
    },
    unsupported_architectures={"RobertaForCausalLM": bert.CAUSAL},
)
