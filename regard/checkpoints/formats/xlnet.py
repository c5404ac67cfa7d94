"""XLNet's published layout: names, configuration, heads.

A language model is the model itself; under other heads it is `EncoderWithHeads`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.checkpoints.formats.config_table import (
    ACTIVATIONS,
    GENERATION,
    ConfigTable,
    Field,
    TokenField,
    activation,
    dropout,
    output,
    unsupported,
)
from regard.checkpoints.formats.encoder_layout import HeadLayout, affine
from regard.checkpoints.formats.gpt import GPTLayout
from regard.checkpoints.names import NameRow, Names, Tensors, Transform, interleave
from regard.models.config import Count, Epsilon, InitScale, Size, TokenId
from regard.models.xlnet import Xlnet

LM_HEAD = "lm_loss"


@dataclass(frozen=True)
class LimitField(Field):
    """A number of tokens; 0 or -1 means that there is no limit."""

    none: int | None = None  # their value for ours

    def read(self, config: Mapping[str, Any]) -> Any:
        value = config.get(self.theirs, self.absent)
        return None if value in (0, -1) else super().read(config)

    def write(self, value: Any) -> Any:
        return self.none if value is None else value


@dataclass(frozen=True)
class XlnetFields(ConfigTable):
    """Their `d_head` follows from two other fields."""

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The options of our configuration."""
        options = super().read(config)
        head_dim, heads = config.get("d_head"), options["heads"]
        if head_dim is not None and head_dim * heads != options["d_model"]:
            must = f"`d_model` / `n_head` ({options['d_model']} / {heads})"
            raise unsupported("d_head", must, head_dim, "transformers has no other width either")
        return options

    def write(self, config: Any) -> dict[str, Any]:
        """Their fields for our configuration."""
        return super().write(config) | {"d_head": config.d_model // config.heads}


@dataclass(frozen=True)
class XlnetLayout(GPTLayout):
    """How XLNet is published: as GPT, with an output over tokens that has a bias."""

    ENDINGS = {
        (): "Model",
        ("classes",): "ForSequenceClassification",
        ("tags",): "ForTokenClassification",
        ("span",): "ForQuestionAnsweringSimple",
        ("span_search",): "ForQuestionAnswering",
        ("multiple_choice",): "ForMultipleChoice",
    }

    def names(self, kinds: Sequence[str], config: Any) -> Names:
        """The table of a model with these heads, and of its output over tokens."""
        table = super(GPTLayout, self).names(kinds, config)
        embedding = self.prefix + self.body[0][1]
        if config.output == "tied":
            table.tied["encoder.head.weight"] = "encoder.embedding.weight"
            table.duplicates[f"{LM_HEAD}.weight"] = embedding
        if config.output == "own":
            table.rows.append(NameRow.of("encoder.head.weight", f"{LM_HEAD}.weight"))
        if config.output != "none":
            table.rows.append(NameRow.of("encoder.head.bias", f"{LM_HEAD}.bias"))
        return table

    def _adjusted(self, ours: Any, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
        # Their defaults are ids of the released vocabulary; a smaller one has no such token.
        beyond = [r for r in ("pad", "bos", "eos") if (getattr(ours, r) or 0) >= ours.vocab_size]
        ours = replace(ours, **dict.fromkeys(beyond))
        is_language_model = self._named_architecture(config) == self.language_model
        if not is_language_model and f"{LM_HEAD}.bias" not in tensors:
            return replace(ours, output="none")
        return ours


# ---------------------------------------------------------------------------- attention

PARTS = ("q", "k", "v", "r", "o", "r_w_bias", "r_r_bias", "r_s_bias", "seg_embed")
OUR_PARTS = (
    *("query.weight", "key_value.weight", "distance.weight", "output.weight"),
    *("content_bias", "position_bias", "segment_bias", "segments"),
)
# (1, 1, D) -> (D,)
VECTOR = Transform(lambda theirs: [theirs[0][0, 0]], lambda ours: [ours[0][None, None]])
COLUMNS = interleave(dim=1)  # theirs has all sines of a distance before all cosines


def _read_attention(theirs: Tensors) -> Tensors:
    """Their matrices are (D, H, K); ours are (H * K, D), and (D, H * K) of the output."""
    *matrices, output, content, position, segment, segments = theirs
    query, key, value, distance = (matrix.flatten(1).t() for matrix in matrices)
    distance = COLUMNS.read([distance])[0]
    biases = [bias[:, None] for bias in (content, position, segment)]  # (H, K) -> (H, 1, K)
    packed = torch.cat([key, value])
    return [query, packed, distance, output.flatten(1), *biases, segments.transpose(0, 1)]


def _write_attention(ours: Tensors) -> Tensors:
    query, packed, distance, output, *biases, segments = ours
    heads = biases[0].size(0)
    distance = COLUMNS.write([distance])[0]
    matrices = [
        matrix.t().unflatten(1, (heads, -1)) for matrix in (query, *packed.chunk(2), distance)
    ]
    return [
        *matrices,
        output.unflatten(1, (heads, -1)),
        *(bias[:, 0] for bias in biases),
        segments.transpose(0, 1),
    ]


# ------------------------------------------------------------------------------- tables

LAYER, OURS = "layer.{layer}", "blocks.{layer}"
BODY = [
    ("embedding.weight", "word_embedding.weight"),
    (
        "start",
        "mask_emb",
        Transform(lambda one: [one[0].flatten()], lambda one: [one[0][None, None]]),
    ),
    (
        tuple(f"{OURS}.attention.{part}" for part in OUR_PARTS),
        tuple(f"{LAYER}.rel_attn.{part}" for part in PARTS),
        Transform(_read_attention, _write_attention),
    ),
    *affine(f"{OURS}.attention_norm", f"{LAYER}.rel_attn.layer_norm"),
    *affine(f"{OURS}.feed.inner", f"{LAYER}.ff.layer_1"),
    *affine(f"{OURS}.feed.outer", f"{LAYER}.ff.layer_2"),
    *affine(f"{OURS}.feed_norm", f"{LAYER}.ff.layer_norm"),
]
FIELDS = {
    "vocab_size": Field("vocab_size", 32000, Size),
    "d_model": Field("d_model", 1024, Size),
    "d_ff": Field("d_inner", 4096, Size),
    "heads": Field("n_head", 16, Size),
    "layers": Field("n_layer", 24, Count),
    "activation": activation("ff_activation", "gelu"),
    "dropout": dropout("dropout", 0.1),
    "attention": Field("attn_type", "bi", names={"bi": "bi", "uni": "uni"}),
    "memory_length": LimitField("mem_len", 512, Size | None),
    "reuse_len": LimitField("reuse_len", None, Size | None),
    "memory_in_training": Field("use_mems_train", False, bool),
    "memory_in_evaluation": Field("use_mems_eval", True, bool),
    "bi_data": Field("bi_data", False, bool),
    "max_distance": LimitField("clamp_len", -1, Size | None, none=-1),
    "same_length": Field("same_length", False, bool),
    "start_n_top": Field("start_n_top", 5, Size),
    "end_n_top": Field("end_n_top", 5, Size),
    # without an index of a token, theirs takes the last one
    "summary": Field(
        "summary_type",
        "last",
        names={"last": "last", "first": "first", "mean": "mean", "cls_index": "last"},
    ),
    "summary_activation": Field(
        "summary_activation", "tanh", names={**ACTIVATIONS, "": "linear", None: "linear"}
    ),
    "summary_dropout": dropout("summary_last_dropout", 0.1),
    "norm_eps": Field("layer_norm_eps", 1e-12, Epsilon),
    "init_range": Field("initializer_range", 0.02, InitScale),
    "output": output(True),
    "pad": TokenField("pad_token_id", 5, TokenId | None),
    "bos": TokenField("bos_token_id", 1, TokenId | None),
    "eos": TokenField("eos_token_id", 2, TokenId | None, several=True),
}
FIXED: dict[str, tuple[Any, ...]] = {
    "summary_use_proj": (True,),
    "summary_proj_to_labels": (False,),
    "summary_first_dropout": (0, None),
}
SILENT = [
    *GENERATION,
    "d_head",
    # The files have the biases of every layer, also where one program shared them.
    "untie_r",
    # of the program that trained the first models
    *("dropatt", "init", "init_std", "use_mems"),
]
ALIASES = {
    "n_token": "vocab_size",
    "hidden_size": "d_model",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
INNER = affine("inner.dense", "sequence_summary.summary")
CLASSIFIER = affine("output", "logits_proj")
ANSWERS = [
    *affine("start", "start_logits.dense"),
    *affine("end_inner", "end_logits.dense_0"),
    *affine("end_norm", "end_logits.LayerNorm"),
    *affine("end", "end_logits.dense_1"),
    *affine("no_answer_inner", "answer_class.dense_0"),
    ("no_answer.weight", "answer_class.dense_1.weight"),
]

XLNET = XlnetLayout(
    model=Xlnet,
    family="XLNet",
    model_type="xlnet",
    config=XlnetFields(FIELDS, FIXED, SILENT, ALIASES),
    prefix="transformer.",
    body=BODY,
    adapted=("layer_1", "layer_2"),  # `peft` adapts linear layers, which their projections are not
    heads={
        "classes": HeadLayout([*INNER, *CLASSIFIER]),
        "multiple_choice": HeadLayout([*INNER, *CLASSIFIER]),
        "tags": HeadLayout(affine("output", "classifier")),
        "span": HeadLayout(affine("output", "qa_outputs")),
        "span_search": HeadLayout(ANSWERS),
    },
)
