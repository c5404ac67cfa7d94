"""Transformer-XL's published layout (`model_type` transfo-xl): names, configuration, heads.

Its program puts all sines of a distance before all cosines; the paper and we put the sine and the
cosine of one frequency side by side, so that W_r is reordered. It starts with a memory of zeros,
which queries attend to.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.checkpoints.formats.config_table import (
    GENERATION,
    ConfigTable,
    Field,
    TokenField,
    dropout,
    unsupported,
)
from regard.checkpoints.formats.encoder_layout import HeadLayout, affine
from regard.checkpoints.formats.gpt import GPTLayout
from regard.checkpoints.names import NameRow, Names, Transform, interleave, split
from regard.errors import ConfigError
from regard.models.config import Count, Epsilon, InitScale, Size, TokenId
from regard.models.transformer_xl import TransformerXL
from regard.schema import checked

# ----------------------------------------------------------------------------------- weights

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

    def holds(self, model: nn.Module) -> bool:
        """See `Layout`; their classifier reads vectors of the width of the embedding."""
        if not super().holds(model):
            return False
        config: Any = model.config
        return isinstance(model, TransformerXL) or config.d_embedding in (None, config.d_model)

    def names(self, kinds: Any, config: Any) -> Names:
        """The table of a model with these heads, and of its output over tokens."""
        table = super().names(kinds, config)
        for ours, theirs in BIASES.items():
            name = f"encoder.blocks.%s.attention.{ours}"
            inside = f"{self.prefix}layers.%s.dec_attn.{theirs}"
            if not config.shared_biases:
                row = NameRow.of(name % "{layer}", inside % "{layer}", PER_HEAD)
                table.rows.append(row)
                continue
            table.rows.append(NameRow.of(name % 0, self.prefix + theirs, PER_HEAD))
            table.tied |= {name % n: name % 0 for n in range(1, config.layers)}
            shared = {inside % n: self.prefix + theirs for n in range(config.layers)}
            table.duplicates |= shared
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

    def _adjusted(self, ours: Any, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
        ours = super()._adjusted(ours, config, tensors)
        wanted = self._named_architecture(config) == self.language_model
        if wanted or any(name.startswith("crit.") for name in tensors):
            return ours
        return replace(ours, output="none")


# ----------------------------------------------------------------------------------- config.json


@dataclass(frozen=True)
class TransfoXLFields(ConfigTable):
    """Lists with one entry for each cluster; `clamp_len` <= 0 means no limit."""

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
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

    def write(self, config: Any) -> dict[str, Any]:
        """Their fields for our configuration."""
        ties = [config.ties_projection(n) for n in range(len(config.cutoffs) + 1)]
        return super().write(config) | {
            "cutoffs": list(config.cutoffs),
            "tie_projs": ties,
            "clamp_len": config.max_distance or -1,
            "d_embed": config.d_embedding or config.d_model,
            "d_head": config.head_width,
        }


FIELDS = {
    "vocab_size": Field("vocab_size", 267735, Size),
    "d_model": Field("d_model", 1024, Size),
    "d_embedding": Field("d_embed", 1024, Size),
    "d_ff": Field("d_inner", 4096, Size),
    "heads": Field("n_head", 16, Size),
    "head_dim": Field("d_head", 64, Size),
    "layers": Field("n_layer", 18, Size),
    "cutoffs": Field("cutoffs", [20000, 40000, 200000], list[Size]),
    "divisor": Field("div_val", 4, Size),
    "output": Field(
        "tie_word_embeddings", True, names={True: "tied", False: "own"}, back={"none": True}
    ),
    "norm": Field("pre_lnorm", False, names={False: "post", True: "pre"}),
    "shared_biases": Field("untie_r", True, names={True: False, False: True}),
    "memory_length": Field("mem_len", 1600, Count),
    "same_length": Field("same_length", True, bool),
    "max_distance": Field("clamp_len", 1000, int),
    "target_length": Field("tgt_len", 128, Size),
    "dropout": dropout("dropout", 0.1),
    "attention_dropout": dropout("dropatt", 0.0),
    "norm_eps": Field("layer_norm_epsilon", 1e-5, Epsilon),
    "init_range": Field("init_std", 0.02, InitScale),
    "pad": TokenField("pad_token_id", None, TokenId | None),
    "bos": TokenField("bos_token_id", None, TokenId | None),
    "eos": TokenField("eos_token_id", 0, TokenId | None, several=True),
}
# Learned and absolute positions, which no published weights have; a sampled softmax; `ext_len`.
FIXED = {"attn_type": (0,), "sample_softmax": (-1, 0), "ext_len": (0,), "tie_weight": (True,)}
# Fields of initialization, fields that they ignore, and fields that `TransfoXLFields.read` reads.
OTHERS = ["init", "init_range", "proj_init_std", "adaptive", "trainer_compatible"]
OTHERS += ["tie_projs", "proj_share_all_but_first", *GENERATION]
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
    config=TransfoXLFields(FIELDS, FIXED, OTHERS, ALIASES),
    prefix="transformer.",
    adapted=("qkv_net",),
    ignored=["pos_emb.inv_freq"],
    body=BODY,
    heads={"classes": HeadLayout([("output.weight", "score.weight")])},
)
