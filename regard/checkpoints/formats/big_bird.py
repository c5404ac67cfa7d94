"""BigBird's published layout: BERT's body, its own heads."""

from dataclasses import dataclass, replace
from typing import Any

from regard.checkpoints.formats import bert
from regard.checkpoints.formats.config_table import ConfigTable, Field, TokenField, activation
from regard.checkpoints.formats.encoder_layout import (
    CLASSIFIER,
    TWO_LAYERS,
    EncoderLayout,
    HeadLayout,
    Rows,
    affine,
)
from regard.models.bigbird import BigBird
from regard.models.config import Count, Size, TokenId

FIELDS = bert.FIELDS | {
    "vocab_size": Field("vocab_size", 50358, Size),
    "max_length": Field("max_position_embeddings", 4096, Size),
    "activation": activation("hidden_act", "gelu_new"),
    "pad": TokenField("pad_token_id", 0, TokenId | None),
    "attention": Field(
        "attention_type",
        "block_sparse",
        names={"block_sparse": "block-sparse", "original_full": "full"},
    ),
    "block_size": Field("block_size", 64, Size),
    "random_blocks": Field("num_random_blocks", 3, Count),
    "projection_bias": Field("use_bias", True, bool),
    "scaled_embedding": Field("rescale_embeddings", False, bool),
    "random_seed": Field("regard_random_seed", 0, Count),  # which no other library reads
}
PROJECTION = "blocks.{layer}.attention.query_key_value"
POOLER = affine("inner.dense", "bert.pooler")


@dataclass(frozen=True)
class BigBirdLayout(EncoderLayout):
    """Without `use_bias` the projections have no bias. There is no class for the next sentence."""

    @property
    def architectures(self) -> dict[tuple[str, ...], str]:
        names = super().architectures
        return {kinds: name for kinds, name in names.items() if kinds != ("next_sentence",)}

    def body_of(self, config: Any) -> Rows:
        bias = [row for row in self.body if row[0] == f"{PROJECTION}.bias"]
        return [row for row in self.body if config.projection_bias or row not in bias]


BIG_BIRD = BigBirdLayout(
    model=BigBird,
    family="BigBird",
    model_type="big_bird",
    config=ConfigTable(FIELDS, bert.FIXED, bert.SILENT),
    prefix="bert.",
    body=bert.BODY,
    ignored=bert.IGNORED,
    heads={
        "pooler": HeadLayout(POOLER),
        "masked_lm": bert.BERT.heads["masked_lm"],
        "next_sentence": replace(
            bert.BERT.heads["next_sentence"],
            rows=[*POOLER, *affine("output", "cls.seq_relationship")],
        ),
        "classes": TWO_LAYERS,
        "tags": HeadLayout(CLASSIFIER),
        "span": HeadLayout(
            [
                *affine("feed.inner", "qa_classifier.intermediate.dense"),
                *affine("feed.outer", "qa_classifier.output.dense"),
                *affine("feed_norm", "qa_classifier.output.LayerNorm"),
                *affine("output", "qa_classifier.qa_outputs"),
            ]
        ),
        "multiple_choice": HeadLayout([*POOLER, *CLASSIFIER]),
    },
    unsupported_architectures={"BigBirdForCausalLM": bert.CAUSAL},
)
