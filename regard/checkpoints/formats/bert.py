"""The published layouts of BERT and of encoders of its shape: names, configuration, heads.

SegaBERT's folders say that they are BERT's (`model_type`), and most do not say how large its three
tables of positions are: their tensors tell both. RoBERTa, XLM-R and CamemBERT are one layout under
three names; MPNet has RoBERTa's heads on a body with names of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from regard.checkpoints.formats.config_table import (
    ConfigJson,
    ConfigTable,
    Field,
    TokenField,
    Values,
    activation,
    dropout,
    of_kind,
    unsupported,
)
from regard.checkpoints.formats.encoder_layout import (
    CLASSIFIER,
    TOKEN_HEADS,
    TWO_LAYERS,
    EncoderLayout,
    HeadLayout,
    Rows,
    affine,
    block_rows,
    masked_lm,
    packed,
    pooled,
)
from regard.models import bert, bigbird, electra, roberta, segabert
from regard.models.config import Count, Epsilon, InitScale, Size, TokenId

QUERY_KEY_VALUE = "blocks.{layer}.attention.query_key_value"
SEPARATE = ("query", "key", "value")
EMBEDDINGS = [
    ("embedding.weight", "embeddings.word_embeddings.weight"),
    ("positions.vectors.weight", "embeddings.position_embeddings.weight"),
    *affine("norm", "embeddings.LayerNorm"),
]
SEGMENTS = ("segments.weight", "embeddings.token_type_embeddings.weight")
IGNORED = ["embeddings.position_ids", "embeddings.token_type_ids"]

# ----------------------------------------------------------------------------------- BERT

LAYER = "encoder.layer.{layer}"
FEED = ("intermediate.dense", "output.dense", "output.LayerNorm")
BODY = [
    *(*EMBEDDINGS, SEGMENTS),
    *packed(QUERY_KEY_VALUE, [f"{LAYER}.attention.self.{part}" for part in SEPARATE]),
    *block_rows(LAYER, "attention.output.dense", "attention.output.LayerNorm", *FEED),
]
FIELDS = {
    **of_kind(
        Size,
        vocab_size=("vocab_size", 30522),
        d_model=("hidden_size", 768),
        d_ff=("intermediate_size", 3072),
        heads=("num_attention_heads", 12),
        segments=("type_vocab_size", 2),
        max_length=("max_position_embeddings", 512),
    ),
    "layers": Field("num_hidden_layers", 12, Count),
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
POOLED = pooled("bert.pooler.dense")
NEXT_SENTENCE = affine("output", "cls.seq_relationship")

BERT = EncoderLayout(
    model=bert.Bert,
    family="Bert",
    model_type="bert",
    config=ConfigTable(FIELDS, FIXED, SILENT, only=LEARNED),
    prefix="bert.",
    body=BODY,
    ignored=IGNORED,
    heads={
        "masked_lm": masked_lm(
            "bert.",
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder",
            "cls.predictions.bias",
        ),
        "next_sentence": HeadLayout([*POOLED["pooler"].rows, *NEXT_SENTENCE]),
        "classes": POOLED["multiple_choice"],
        **TOKEN_HEADS,
        **POOLED,
    },
)

TABLES = {
    "paragraphs": "para_position_embeddings",
    "sentences": "sent_position_embeddings",
    "sentence_length": "token_position_embeddings",
}


@dataclass(frozen=True)
class SegaBertLayout(EncoderLayout):
    """BERT's, where the tensors say how large the tables of positions are."""

    def _adjusted(self, ours: Any, config: ConfigJson, tensors: Mapping[str, Tensor]) -> Any:
        sizes = {}
        for name, table in TABLES.items():
            tensor = tensors.get(f"{self.prefix}embeddings.{table}.weight")
            if tensor is not None and tensor.dim() and config.get(f"max_{table}") is None:
                sizes[name] = tensor.size(0)
        return replace(ours, **sizes)


SEGABERT = SegaBertLayout(
    model=segabert.SegaBert,
    family="Bert",
    model_type="bert",
    config=ConfigTable(
        FIELDS
        | of_kind(
            Size,
            paragraphs=("max_para_position_embeddings", 50),
            sentences=("max_sent_position_embeddings", 100),
            sentence_length=("max_token_position_embeddings", 512),
        ),
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
)

# ----------------------------------------------------------------------------------- RoBERTa


@dataclass(frozen=True)
class RobertaPositionFields(ConfigTable):
    """Theirs counts vectors of positions, and ours tokens: `pad + 1` vectors belong to none."""

    def read(self, config: ConfigJson) -> Values:
        """The options of our configuration."""
        options = super().read(config)
        vectors = options["max_length"]
        options["max_length"] = vectors - options["pad"] - 1
        if options["max_length"] < 1:
            must = f"more than `pad_token_id` + 1 ({options['pad'] + 1})"
            raise unsupported("max_position_embeddings", must, vectors)
        return options

    def write(self, config: Any) -> Values:
        """Their fields for our configuration."""
        vectors = config.max_length + config.pad + 1
        return super().write(config) | {"max_position_embeddings": vectors}


ROBERTA_FIELDS = FIELDS | {
    "vocab_size": Field("vocab_size", 50265, Size),
    "pad": TokenField("pad_token_id", 1, TokenId),  # positions are counted from it
}


def _roberta_heads(prefix: str) -> dict[str, HeadLayout]:
    """The heads of RoBERTa and of MPNet."""
    return {
        "masked_lm": masked_lm(
            prefix, "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"
        ),
        "classes": TWO_LAYERS,
        **TOKEN_HEADS,
        **pooled(f"{prefix}pooler.dense"),
    }


ROBERTA = EncoderLayout(
    model=roberta.Roberta,
    family="Roberta",
    model_type="roberta",
    config=RobertaPositionFields(ROBERTA_FIELDS, FIXED, SILENT),
    prefix="roberta.",
    body=BODY,
    ignored=IGNORED,
    heads=_roberta_heads("roberta."),
)
XLM_ROBERTA = replace(
    ROBERTA, model=roberta.XlmRoberta, family="XLMRoberta", model_type="xlm-roberta"
)
CAMEMBERT = replace(ROBERTA, family="Camembert", model_type="camembert")

SHARED = {k: v for k, v in ROBERTA_FIELDS.items() if k not in ("segments", "head_dropout")}
MPNET = EncoderLayout(
    model=roberta.Mpnet,
    family="MPNet",
    model_type="mpnet",
    config=RobertaPositionFields(
        SHARED
        | {
            "vocab_size": Field("vocab_size", 30527, Size),
            "pad": Field("pad_token_id", 1, names={1: 1}),
        },
        # Their program counts positions from 1 and distances in 32 buckets, whatever fields say.
        {"relative_attention_num_buckets": (32,)},
        SILENT,
        only={"head_dropout": None},
    ),
    prefix="mpnet.",
    body=[
        *EMBEDDINGS,
        ("relative.values.weight", "encoder.relative_attention_bias.weight"),
        *packed(QUERY_KEY_VALUE, [f"{LAYER}.attention.attn.{part}" for part in "qkv"]),
        *block_rows(LAYER, "attention.attn.o", "attention.LayerNorm", *FEED),
    ],
    adapted=("q", "v"),
    ignored=["embeddings.position_ids"],
    heads=_roberta_heads("mpnet."),
)

# ----------------------------------------------------------------------------------- ALBERT

GROUP = "encoder.albert_layer_groups.{layer}.albert_layers.0"
ALBERT_POOLED = pooled("albert.pooler")

ALBERT = EncoderLayout(
    model=bert.Albert,
    family="Albert",
    model_type="albert",
    config=ConfigTable(
        FIELDS
        | of_kind(
            Size,
            vocab_size=("vocab_size", 30000),
            d_model=("hidden_size", 4096),
            d_ff=("intermediate_size", 16384),
            heads=("num_attention_heads", 64),
            d_embedding=("embedding_size", 128),
            groups=("num_hidden_groups", 1),
        )
        | {
            "activation": activation("hidden_act", "gelu_new"),
            "dropout": dropout("hidden_dropout_prob", 0.0),
            "attention_dropout": dropout("attention_probs_dropout_prob", 0.0),
            "head_dropout": dropout("classifier_dropout_prob", 0.1),
        },
        FIXED | {"inner_group_num": (1,)},  # as in all published files
        [
            *SILENT,
            # of their own files: what neither their program nor `transformers` reads
            *("down_scale_factor", "gap_size", "layers_to_keep", "net_structure_type"),
            "num_memory_blocks",
        ],
        only={"layers_per_group": 1},
    ),
    prefix="albert.",
    body=[
        *(*EMBEDDINGS, SEGMENTS),
        *affine("project", "encoder.embedding_hidden_mapping_in"),
        *packed(QUERY_KEY_VALUE, [f"{GROUP}.attention.{part}" for part in SEPARATE]),
        *block_rows(
            *(GROUP, "attention.dense", "attention.LayerNorm"),
            *("ffn", "ffn_output", "full_layer_layer_norm"),
        ),
    ],
    ignored=IGNORED,
    heads={
        "masked_lm": masked_lm(
            "albert.",
            "predictions.dense",
            "predictions.LayerNorm",
            "predictions.decoder",
            "predictions.bias",
        ),
        "sentence_order": HeadLayout(
            [*ALBERT_POOLED["pooler"].rows, *affine("output", "sop_classifier.classifier")]
        ),
        "classes": ALBERT_POOLED["multiple_choice"],
        **TOKEN_HEADS,
        **ALBERT_POOLED,
    },
)

# ----------------------------------------------------------------------------------- ELECTRA

ELECTRA = EncoderLayout(
    model=electra.Electra,
    family="Electra",
    model_type="electra",
    config=ConfigTable(
        FIELDS
        | of_kind(
            Size,
            d_model=("hidden_size", 256),
            d_ff=("intermediate_size", 1024),
            heads=("num_attention_heads", 4),
            d_embedding=("embedding_size", 128),
        )
        | {
            "choice_activation": activation("summary_activation", "gelu"),
            "choice_dropout": dropout("summary_last_dropout", 0.1),
        },
        # How the head for choices sums up a text: its first token through a layer.
        FIXED
        | {
            "summary_type": ("first",),
            "summary_use_proj": (True,),
            "summary_first_dropout": (0.0,),
            "summary_proj_to_labels": (False,),
        },
        SILENT,
        only=LEARNED,
    ),
    prefix="electra.",
    body=BODY,
    projection=affine("project", "embeddings_project"),
    ignored=IGNORED,
    heads={
        "replaced": HeadLayout(
            [
                *affine("inner.dense", "discriminator_predictions.dense"),
                *affine("output", "discriminator_predictions.dense_prediction"),
            ]
        ),
        "masked_lm": masked_lm(
            "electra.",
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head",
            "generator_lm_head.bias",
            has_twin=False,
        ),
        "classes": TWO_LAYERS,
        **TOKEN_HEADS,
        "multiple_choice": HeadLayout(
            [*affine("inner.dense", "sequence_summary.summary"), *CLASSIFIER]
        ),
    },
)

# ----------------------------------------------------------------------------------- DistilBERT

DISTIL = "transformer.layer.{layer}"
DISTIL_CLASSIFIER = HeadLayout([*affine("inner.dense", "pre_classifier"), *CLASSIFIER])

DISTILBERT = EncoderLayout(
    model=bert.DistilBert,
    family="DistilBert",
    model_type="distilbert",
    config=ConfigTable(
        {
            **of_kind(
                Size,
                vocab_size=("vocab_size", 30522),
                d_model=("dim", 768),
                d_ff=("hidden_dim", 3072),
                heads=("n_heads", 12),
                max_length=("max_position_embeddings", 512),
            ),
            "layers": Field("n_layers", 6, Count),
            "sinusoidal": Field("sinusoidal_pos_embds", False, bool),
            "activation": activation("activation", "gelu"),
            "dropout": dropout("dropout", 0.1),
            "attention_dropout": dropout("attention_dropout", 0.1),
            "classes_dropout": dropout("seq_classif_dropout", 0.2),
            "span_dropout": dropout("qa_dropout", 0.1),
            **{name: FIELDS[name] for name in ("init_range", "tied", "pad")},
        },
        # ids that only generation and their tokenizer read; how their training shared the output
        silent=["bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "tie_weights_"],
        only={"norm_eps": 1e-12},
        aliases={
            "hidden_size": "dim",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
        },
    ),
    prefix="distilbert.",
    body=[
        *EMBEDDINGS,
        *packed(QUERY_KEY_VALUE, [f"{DISTIL}.attention.{part}_lin" for part in "qkv"]),
        *block_rows(
            *(DISTIL, "attention.out_lin", "sa_layer_norm"),
            *("ffn.lin1", "ffn.lin2", "output_layer_norm"),
        ),
    ],
    adapted=("q_lin", "v_lin"),
    ignored=["embeddings.position_ids"],
    heads={
        "masked_lm": masked_lm(
            "distilbert.",
            "vocab_transform",
            "vocab_layer_norm",
            "vocab_projector",
            "vocab_projector.bias",
            has_twin=False,
        ),
        "classes": DISTIL_CLASSIFIER,
        **TOKEN_HEADS,
        "multiple_choice": DISTIL_CLASSIFIER,
    },
)

# ----------------------------------------------------------------------------------- BigBird


@dataclass(frozen=True)
class BigBirdLayout(EncoderLayout):
    """Without `use_bias` the projections have no bias. There is no class for the next sentence."""

    @property
    def architectures(self) -> dict[tuple[str, ...], str]:
        names = super().architectures
        return {kinds: name for kinds, name in names.items() if kinds != ("next_sentence",)}

    def body_of(self, config: Any) -> Rows:
        return [
            row
            for row in self.body
            if config.projection_bias or row[0] != f"{QUERY_KEY_VALUE}.bias"
        ]


BIG_POOLED = pooled("bert.pooler")

BIG_BIRD = BigBirdLayout(
    model=bigbird.BigBird,
    family="BigBird",
    model_type="big_bird",
    config=ConfigTable(
        FIELDS
        | of_kind(
            Size,
            vocab_size=("vocab_size", 50358),
            max_length=("max_position_embeddings", 4096),
            block_size=("block_size", 64),
        )
        | of_kind(
            Count,
            random_blocks=("num_random_blocks", 3),
            random_seed=("regard_random_seed", 0),  # which no other library reads
        )
        | of_kind(
            bool,
            projection_bias=("use_bias", True),
            scaled_embedding=("rescale_embeddings", False),
        )
        | {
            "activation": activation("hidden_act", "gelu_new"),
            "attention": Field(
                "attention_type",
                "block_sparse",
                names={"block_sparse": "block-sparse", "original_full": "full"},
            ),
        },
        FIXED,
        SILENT,
    ),
    prefix="bert.",
    body=BODY,
    ignored=IGNORED,
    heads={
        "masked_lm": BERT.heads["masked_lm"],
        "next_sentence": HeadLayout([*BIG_POOLED["pooler"].rows, *NEXT_SENTENCE]),
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
        **BIG_POOLED,
    },
)
