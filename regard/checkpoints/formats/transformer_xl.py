"""The published layouts of Transformer-XL (`model_type` transfo-xl) and XLNet, both as GPT's: a
language model is the model itself, and under other heads it is `EncoderWithHeads`.

Their programs put all sines of a distance before all cosines; the papers and we put the sine and
the cosine of one frequency side by side, so that W_r is reordered. Transformer-XL's starts with a
memory of zeros, which queries attend to.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.checkpoints.formats.config_table import (
    ACTIVATIONS,
    ConfigJson,
    ConfigTable,
    Field,
    Values,
    activation,
    dropout,
    of_kind,
    output,
    special_tokens,
    unsupported,
)
from regard.checkpoints.formats.encoder_layout import TOKEN_HEADS, HeadLayout, affine
from regard.checkpoints.formats.gpt import CLASSES, GPTLayout
from regard.checkpoints.names import NameRow, Names, Tensors, Transform, interleave, split
from regard.errors import ConfigError
from regard.models.config import Count, Epsilon, InitScale, Size
from regard.models.transformer_xl import TransformerXL
from regard.models.xlnet import Xlnet
from regard.schema import checked

# ----------------------------------------------------------------------------------- Transformer-XL

LAYER, OURS = "layers.{layer}", "blocks.{layer}"
TABLES, PROJECTIONS = "word_emb.emb_layers.{layer}.weight", "word_emb.emb_projs.{layer}"
PAIRED = Transform(  # of three tensors the last two as one
    read=lambda parts: [parts[0], torch.cat(parts[1:])],
    write=lambda parts: [parts[0], *parts[1].chunk(2)],
)
PER_HEAD = Transform(  # (H, K) there, (H, 1, K) here
    read=lambda tensors: [tensor[:, None] for tensor in tensors],
    write=lambda tensors: [tensor[:, 0] for tensor in tensors],
)
BIASES = {"content_bias": "r_w_bias", "position_bias": "r_r_bias"}
BODY = [
    ("embedding.tables.{layer}.weight", TABLES),
    ("embedding.projections.{layer}", PROJECTIONS),
    (
        (f"{OURS}.attention.query.weight", f"{OURS}.attention.key_value.weight"),
        f"{LAYER}.dec_attn.qkv_net.weight",
        split(3).then(PAIRED),
    ),
    (f"{OURS}.attention.distance.weight", f"{LAYER}.dec_attn.r_net.weight", interleave(1)),
    (f"{OURS}.attention.output.weight", f"{LAYER}.dec_attn.o_net.weight"),
    *affine(f"{OURS}.attention_norm", f"{LAYER}.dec_attn.layer_norm"),
    *affine(f"{OURS}.feed.inner", f"{LAYER}.pos_ff.CoreNet.0"),
    *affine(f"{OURS}.feed.outer", f"{LAYER}.pos_ff.CoreNet.3"),
    *affine(f"{OURS}.feed_norm", f"{LAYER}.pos_ff.layer_norm"),
]


@dataclass(frozen=True)
class TransfoXLLayout(GPTLayout):
    """How Transformer-XL is published."""

    ENDINGS = {(): "Model", ("classes",): "ForSequenceClassification"}

    def holds(self, model: Any) -> bool:
        # their classifier reads vectors of the width of the embedding
        if not super().holds(model):
            return False
        config = model.config
        return isinstance(model, TransformerXL) or config.d_embedding in (None, config.d_model)

    def names(self, kinds: Any, config: Any) -> Names:
        """The table of a model with these heads, and of its output over tokens."""
        table = super().names(kinds, config)
        for ours, theirs in BIASES.items():
            name = f"encoder.blocks.%s.attention.{ours}"
            inside = f"{self.prefix}layers.%s.dec_attn.{theirs}"
            if not config.shared_biases:
                table.rows.append(NameRow.of(name % "{layer}", inside % "{layer}", PER_HEAD))
                continue
            table.rows.append(NameRow.of(name % 0, self.prefix + theirs, PER_HEAD))
            table.tied |= {name % n: name % 0 for n in range(1, config.layers)}
            table.duplicates |= {inside % n: self.prefix + theirs for n in range(config.layers)}
        return table

    def add_output(self, table: Names, config: Any) -> None:
        if config.output == "none":
            return
        head = "encoder.head"
        table.rows.append(NameRow.of(f"{head}.biases.{{layer}}", "crit.out_layers.{layer}.bias"))
        if config.cutoffs:
            for kind in ("weight", "bias"):
                table.rows.append(NameRow.of(f"{head}.cluster_{kind}", f"crit.cluster_{kind}"))
        for n in range(len(config.clusters.tables)):
            theirs, source = f"crit.out_layers.{n}.weight", self.prefix + TABLES.format(layer=n)
            if config.tied:
                table.tied[f"{head}.weights.{n}"] = f"encoder.embedding.tables.{n}.weight"
                table.duplicates[theirs] = source
            else:
                table.rows.append(NameRow.of(f"{head}.weights.{n}", theirs))
        for n in range(len(config.cutoffs) + 1 if config.clusters.projects else 0):
            ours, theirs = f"{head}.projections.{n}", f"crit.out_projs.{n}"
            if config.ties_projection(n):
                shared = 0 if config.divisor == 1 else n
                table.tied[ours] = f"encoder.embedding.projections.{shared}"
                table.duplicates[theirs] = self.prefix + PROJECTIONS.format(layer=shared)
            else:
                table.rows.append(NameRow.of(ours, theirs))

    def _has_output(self, ours: Any, tensors: Mapping[str, Tensor]) -> bool:
        return any(name.startswith("crit.") for name in tensors)


@dataclass(frozen=True)
class TransfoXLFields(ConfigTable):
    """Lists with one entry for each cluster; `clamp_len` <= 0 means no limit."""

    def read(self, config: ConfigJson) -> Values:
        """The options of our configuration."""
        options = super().read(config)
        clusters = len(options["cutoffs"]) + 1
        shared = config.get("proj_share_all_but_first", True)
        usual = [False, *[bool(shared)] * (clusters - 1)]
        ties = checked(
            config.get("tie_projs", usual), list[bool], "config.json", ConfigError, "tie_projs"
        )
        if len(ties) > clusters:
            raise unsupported("tie_projs", f"a list of at most {clusters}, one a cluster,", ties)
        options["cutoffs"], options["tied_projections"] = tuple(options["cutoffs"]), tuple(ties)
        options["max_distance"] = options["max_distance"] if options["max_distance"] > 0 else None
        if options["same_length"] and not options["memory_length"]:
            raise unsupported("mem_len", "at least 1 where `same_length` is true", 0)
        return options | {"memory_start": "zeros"}

    def can_write(self, config: Any) -> bool:
        """See `ConfigTable`. Their memory starts with zeros."""
        return super().can_write(config) and (
            config.memory_start == "zeros" or not config.memory_length
        )

    def write(self, config: Any) -> Values:
        """Their fields for our configuration."""
        ties = [config.ties_projection(n) for n in range(len(config.cutoffs) + 1)]
        return super().write(config) | {
            "cutoffs": list(config.cutoffs),
            "tie_projs": ties,
            "clamp_len": config.max_distance or -1,
            "d_embed": config.d_embedding or config.d_model,
            "d_head": config.head_width,
        }


ALIASES = {
    "n_token": "vocab_size",
    "hidden_size": "d_model",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
TRANSFO_XL = TransfoXLLayout(
    model=TransformerXL,
    family="TransfoXL",
    model_type="transfo-xl",
    config=TransfoXLFields(
        of_kind(
            Size,
            vocab_size=("vocab_size", 267735),
            d_model=("d_model", 1024),
            d_embedding=("d_embed", 1024),
            d_ff=("d_inner", 4096),
            heads=("n_head", 16),
            head_dim=("d_head", 64),
            layers=("n_layer", 18),
            divisor=("div_val", 4),
            target_length=("tgt_len", 128),
        )
        | special_tokens(pad=None, bos=None, eos=0)
        | {
            "cutoffs": Field("cutoffs", [20000, 40000, 200000], list[Size]),
            "output": replace(output(True), back={"none": True}),
            "norm": Field("pre_lnorm", False, names={False: "post", True: "pre"}),
            "shared_biases": Field("untie_r", True, names={True: False, False: True}),
            "memory_length": Field("mem_len", 1600, Count),
            "same_length": Field("same_length", True, bool),
            "max_distance": Field("clamp_len", 1000, int),
            "dropout": dropout("dropout", 0.1),
            "attention_dropout": dropout("dropatt", 0.0),
            "norm_eps": Field("layer_norm_epsilon", 1e-5, Epsilon),
            "init_range": Field("init_std", 0.02, InitScale),
        },
        # Learned and absolute positions, which no published weights have; a sampled softmax.
        {"attn_type": (0,), "sample_softmax": (-1, 0), "ext_len": (0,), "tie_weight": (True,)},
        [
            # of initialization, fields that they ignore, and those that `read` reads
            *("init", "init_range", "proj_init_std", "adaptive", "trainer_compatible"),
            *("tie_projs", "proj_share_all_but_first"),
        ],
        ALIASES,
        only={"max_length": None},
    ),
    prefix="transformer.",
    adapted=("qkv_net",),
    ignored=["pos_emb.inv_freq"],
    body=BODY,
    heads={"classes": CLASSES},
)

# ----------------------------------------------------------------------------------- XLNet


@dataclass(frozen=True)
class LimitField(Field):
    """A number of tokens; 0 or -1 means that there is no limit."""

    none: int | None = None  # their value for ours

    def read(self, config: ConfigJson) -> Any:
        value = config.get(self.theirs, self.absent)
        return None if value in (0, -1) else super().read(config)

    def write(self, value: Any) -> Any:
        return self.none if value is None else value


@dataclass(frozen=True)
class XlnetFields(ConfigTable):
    """Their `d_head` follows from two other fields."""

    def read(self, config: ConfigJson) -> Values:
        """The options of our configuration."""
        options = super().read(config)
        head_dim, heads = config.get("d_head"), options["heads"]
        if head_dim is not None and head_dim * heads != options["d_model"]:
            must = f"`d_model` / `n_head` ({options['d_model']} / {heads})"
            raise unsupported("d_head", must, head_dim, "transformers has no other width either")
        return options

    def write(self, config: Any) -> Values:
        """Their fields for our configuration."""
        return super().write(config) | {"d_head": config.d_model // config.heads}


@dataclass(frozen=True)
class XlnetLayout(GPTLayout):
    """How XLNet is published: as GPT, with an output over tokens that has a bias."""

    HEAD = "lm_loss"
    ROLES = ("pad", "bos", "eos")
    ENDINGS = {
        (): "Model",
        ("classes",): "ForSequenceClassification",
        ("tags",): "ForTokenClassification",
        ("span",): "ForQuestionAnsweringSimple",
        ("multiple_choice",): "ForMultipleChoice",
    }

    def add_output(self, table: Names, config: Any) -> None:
        super().add_output(table, config)
        if config.output != "none":
            table.rows.append(NameRow.of("encoder.head.bias", f"{self.HEAD}.bias"))

    def _has_output(self, ours: Any, tensors: Mapping[str, Tensor]) -> bool:
        return f"{self.HEAD}.bias" in tensors


PARTS = ("q", "k", "v", "r", "o", "r_w_bias", "r_r_bias", "r_s_bias", "seg_embed")
OUR_PARTS = (
    *("query.weight", "key_value.weight", "distance.weight", "output.weight"),
    *("content_bias", "position_bias", "segment_bias", "segments"),
)
# (1, 1, D) -> (D,)
VECTOR = Transform(lambda theirs: [theirs[0].flatten()], lambda ours: [ours[0][None, None]])
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


XLNET_LAYER = "layer.{layer}"
XLNET_BODY = [
    ("embedding.weight", "word_embedding.weight"),
    ("start", "mask_emb", VECTOR),
    (
        tuple(f"{OURS}.attention.{part}" for part in OUR_PARTS),
        tuple(f"{XLNET_LAYER}.rel_attn.{part}" for part in PARTS),
        Transform(_read_attention, _write_attention),
    ),
    *affine(f"{OURS}.attention_norm", f"{XLNET_LAYER}.rel_attn.layer_norm"),
    *affine(f"{OURS}.feed.inner", f"{XLNET_LAYER}.ff.layer_1"),
    *affine(f"{OURS}.feed.outer", f"{XLNET_LAYER}.ff.layer_2"),
    *affine(f"{OURS}.feed_norm", f"{XLNET_LAYER}.ff.layer_norm"),
]
INNER = affine("inner.dense", "sequence_summary.summary")
CLASSIFIER = HeadLayout([*INNER, *affine("output", "logits_proj")])
XLNET = XlnetLayout(
    model=Xlnet,
    family="XLNet",
    model_type="xlnet",
    config=XlnetFields(
        of_kind(
            Size,
            vocab_size=("vocab_size", 32000),
            d_model=("d_model", 1024),
            d_ff=("d_inner", 4096),
            heads=("n_head", 16),
        )
        | of_kind(
            bool,
            memory_in_training=("use_mems_train", False),
            memory_in_evaluation=("use_mems_eval", True),
            same_length=("same_length", False),
        )
        | special_tokens(pad=5, bos=1, eos=2)
        | {
            "layers": Field("n_layer", 24, Count),
            "activation": activation("ff_activation", "gelu"),
            "dropout": dropout("dropout", 0.1),
            "attention": Field("attn_type", "bi", names={"bi": "bi", "uni": "uni"}),
            "memory_length": LimitField("mem_len", 512, Size | None),
            "reuse_len": LimitField("reuse_len", None, Size | None),
            "max_distance": LimitField("clamp_len", -1, Size | None, none=-1),
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
        },
        {
            "bi_data": (False,),
            "summary_use_proj": (True,),
            "summary_proj_to_labels": (False,),
            "summary_first_dropout": (0, None),
        },
        [
            "d_head",
            # The files have the biases of every layer, also where one program shared them.
            "untie_r",
            # of the program that trained the first models
            *("dropatt", "init", "init_std", "use_mems"),
            # of a head that searches for answers
            *("start_n_top", "end_n_top"),
        ],
        ALIASES,
        only={"max_length": None},
    ),
    prefix="transformer.",
    body=XLNET_BODY,
    adapted=("layer_1", "layer_2"),  # `peft` adapts linear layers, which their projections are not
    heads={
        "classes": CLASSIFIER,
        "multiple_choice": CLASSIFIER,
        **TOKEN_HEADS,
    },
)
