"""The published layout of DeBERTa's versions 2 and 3, which name themselves "deberta-v2"."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field as Bounds
from torch import Tensor, nn

from regard.checkpoints.filling import Weights
from regard.checkpoints.formats import config_table, encoder_layout
from regard.checkpoints.formats.bert import FEED, FIELDS, IGNORED, LAYER, SEGMENTS, SEPARATE, SILENT
from regard.checkpoints.names import Transform
from regard.models.config import LARGEST_SIZE, Count, Size
from regard.models.deberta import Deberta, PositionTerms
from regard.schema import check_same

ATTENTION = "blocks.{layer}.attention"
SELF = f"{LAYER}.attention.self"
# Windows side by side, (D, k * D), of a convolution's matrices (D, D, k).
WINDOWS = Transform(
    read=lambda theirs: [theirs[0].transpose(1, 2).flatten(1)],
    write=lambda ours: [ours[0].unflatten(1, (-1, len(ours[0]))).transpose(1, 2)],
)
# The head for masked words of the authors' files, which `transformers` reads with "legacy": false
# -> the same layers under the names of the other form.
RENAMED = (
    ("lm_predictions.lm_head.bias", "cls.predictions.bias"),
    ("lm_predictions.lm_head.", "cls.predictions.transform."),
)
# Below 1 these fields mean "as many as positions" and "none".
Optional = Annotated[int, Bounds(ge=-LARGEST_SIZE, le=LARGEST_SIZE)]


@dataclass(frozen=True)
class DebertaFields(config_table.ConfigTable):
    """Fields that mean another one where they are below 1 or absent."""

    def read(self, config: config_table.ConfigJson) -> config_table.Values:
        """The options of our configuration."""
        options = super().read(config)
        if options["max_relative_positions"] < 1:
            options["max_relative_positions"] = options["max_length"]
        options["d_embedding"] = options["d_embedding"] or options["d_model"]
        for name in ("position_buckets", "conv_kernel_size"):
            options[name] = max(0, options[name])
        width, heads = options["d_model"], options["heads"]
        name, sizes = "attention_head_size", "`hidden_size` / `num_attention_heads`"
        check_same("config.json", name, config.get(name), sizes, width / heads)
        return options

    def write(self, config: Any) -> config_table.Values:
        """Their fields for our configuration."""
        return super().write(config) | {"pos_att_type": [*config.pos_att_type]}


@dataclass(frozen=True)
class DebertaLayout(encoder_layout.EncoderLayout):
    """A configuration decides which parts there are."""

    def body_of(self, config: Any) -> encoder_layout.Rows:
        parts: list[tuple[Any, encoder_layout.Rows]] = [
            (config.positions == "learned", [POSITIONS]),
            (config.segments, [SEGMENTS]),
            (config.relative_attention, [DISTANCES]),
            (config.norm_rel_ebd, encoder_layout.affine("relations.norm", "encoder.LayerNorm")),
            (config.conv_kernel_size, CONVOLUTION),
        ]
        return [*super().body_of(config), *(row for has, rows in parts if has for row in rows)]

    def read(self, config: config_table.ConfigJson, tensors: Weights) -> nn.Module:
        """The model that they hold."""
        if any(name.startswith("lm_predictions.") for name in tensors):
            config = {**config, "tie_word_embeddings": True}  # always, in this form
        return super().read(config, tensors)

    def _with_prefix(self, tensors: Weights) -> dict[str, Tensor]:
        named = super()._with_prefix(tensors)
        for theirs, other in RENAMED:
            named = {name.replace(theirs, other): tensor for name, tensor in named.items()}
        return named


POSITIONS = ("positions.vectors.weight", "embeddings.position_embeddings.weight")
DISTANCES = ("relations.vectors.weight", "encoder.rel_embeddings.weight")
CONVOLUTION: encoder_layout.Rows = [
    ("convolution.convolution.linear.weight", "encoder.conv.conv.weight", WINDOWS),
    ("convolution.convolution.linear.bias", "encoder.conv.conv.bias"),
    *encoder_layout.affine("convolution.norm", "encoder.conv.LayerNorm"),
]
POOLED = encoder_layout.HeadLayout(
    [*encoder_layout.affine("inner.dense", "pooler.dense"), *encoder_layout.CLASSIFIER]
)

DEBERTA = DebertaLayout(
    model=Deberta,
    family="DebertaV2",
    model_type="deberta-v2",
    config=DebertaFields(
        FIELDS
        | config_table.of_kind(
            Size,
            vocab_size=("vocab_size", 128100),
            d_model=("hidden_size", 1536),
            d_ff=("intermediate_size", 6144),
            heads=("num_attention_heads", 24),
        )
        | config_table.of_kind(
            Count, layers=("num_hidden_layers", 24), segments=("type_vocab_size", 0)
        )
        | config_table.of_kind(
            Optional,
            max_relative_positions=("max_relative_positions", -1),
            position_buckets=("position_buckets", -1),
            conv_kernel_size=("conv_kernel_size", 0),
        )
        | config_table.of_kind(
            bool,
            relative_attention=("relative_attention", False),
            share_att_key=("share_att_key", False),
        )
        | {
            "d_embedding": config_table.Field("embedding_size", None, Size | None),
            "positions": config_table.Field(
                "position_biased_input", True, names={True: "learned", False: "none"}
            ),
            "pos_att_type": config_table.Field("pos_att_type", None, PositionTerms),
            "norm_rel_ebd": config_table.Field(
                "norm_rel_ebd", "none", names={"none": False, "layer_norm": True}
            ),
            "conv_act": config_table.activation("conv_act", "tanh"),
            "head_dropout": config_table.dropout("cls_dropout", None),
            "pooler_activation": config_table.activation("pooler_hidden_act", "gelu"),
            "pooler_dropout": config_table.dropout("pooler_dropout", 0.0),
            "norm_eps": config_table.Field("layer_norm_eps", 1e-7, FIELDS["norm_eps"].kind),
        },
        # The head for masked words is written in the first form.
        {"legacy": (True, False), "conv_groups": (1,)},
        [*SILENT, "attention_head_size"],
        aliases={"pooler_hidden_size": "hidden_size"},
    ),
    prefix="deberta.",
    body=[
        ("embedding.weight", "embeddings.word_embeddings.weight"),
        *encoder_layout.affine("norm", "embeddings.LayerNorm"),
        *encoder_layout.packed(
            f"{ATTENTION}.query_key_value", [f"{SELF}.{part}_proj" for part in SEPARATE]
        ),
        *encoder_layout.affine(f"{ATTENTION}.position_key", f"{SELF}.pos_key_proj"),
        *encoder_layout.affine(f"{ATTENTION}.position_query", f"{SELF}.pos_query_proj"),
        *encoder_layout.block_rows(
            LAYER, "attention.output.dense", "attention.output.LayerNorm", *FEED
        ),
    ],
    projection=[("project.weight", "embeddings.embed_proj.weight")],
    adapted=("query_proj", "value_proj"),
    ignored=[*IGNORED, "embeddings.position_embeddings.weight"],
    heads={
        "masked_lm": encoder_layout.masked_lm(
            "deberta.",
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder",
            "cls.predictions.bias",
        ),
        "classes": POOLED,
        **encoder_layout.TOKEN_HEADS,
        "multiple_choice": POOLED,
    },
)
