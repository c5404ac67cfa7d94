"""T5's published layout, of T5, mT5 and umT5: the whole model, and its encoder alone.

A folder of the whole model has tensors of a decoder. Whether the output is a matrix of its own is
in the tensors: later releases of `transformers` write `tie_word_embeddings` true in any case.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.checkpoints.formats import config_table, encoder_layout
from regard.checkpoints.formats.transformer import EncoderDecoderLayout
from regard.checkpoints.names import Names, split
from regard.models.config import Epsilon, Size, TokenId
from regard.models.t5 import T5, T5Config, T5Encoder

# ----------------------------------------------------------------------------------- weights


def _block(ours: str, theirs: str, feed: int) -> list[tuple]:
    """Rows of one block, whose feed-forward layer is their sub-layer of this number."""
    attention = f"{theirs}.layer.0.SelfAttention"
    return [
        (f"{ours}.attention_norm.weight", f"{theirs}.layer.0.layer_norm.weight"),
        (
            f"{ours}.attention.query_key_value.weight",
            tuple(f"{attention}.{part}.weight" for part in "qkv"),
            split(3).reversed(),
        ),
        (f"{ours}.attention.output.weight", f"{attention}.o.weight"),
        (f"{ours}.feed_norm.weight", f"{theirs}.layer.{feed}.layer_norm.weight"),
        (f"{ours}.feed.outer.weight", f"{theirs}.layer.{feed}.DenseReluDense.wo.weight"),
    ]


def _inner(ours: str, theirs: str, gated: bool) -> tuple:
    """The row of a feed-forward layer's first matrix; that of a gated one has two halves."""
    if not gated:
        return f"{ours}.weight", f"{theirs}.wi.weight"
    return f"{ours}.weight", tuple(f"{theirs}.wi_{n}.weight" for n in (0, 1)), split(2).reversed()


ENCODER, DECODER = "encoder.block.{layer}", "decoder.block.{layer}"
BIAS = "layer.0.SelfAttention.relative_attention_bias.weight"
# of the encoder, its first matrices of feed-forward layers aside
BODY = [
    ("embedding.weight", "shared.weight"),
    *_block("blocks.{layer}", ENCODER, feed=1),
    ("relative.tables.{layer}.values.weight", f"{ENCODER}.{BIAS}"),
    ("norm.weight", "encoder.final_layer_norm.weight"),
]
CROSS = f"{DECODER}.layer.1.EncDecAttention"
WHOLE = [
    *((f"encoder.{ours}", *rest) for ours, *rest in BODY),
    *_block("decoder.{layer}", DECODER, feed=2),
    ("decoder.{layer}.cross_norm.weight", f"{DECODER}.layer.1.layer_norm.weight"),
    ("decoder.{layer}.cross.query.weight", f"{CROSS}.q.weight"),
    (
        "decoder.{layer}.cross.key_value.weight",
        (f"{CROSS}.k.weight", f"{CROSS}.v.weight"),
        split(2).reversed(),
    ),
    ("decoder.{layer}.cross.output.weight", f"{CROSS}.o.weight"),
    ("relative.tables.{layer}.values.weight", f"{DECODER}.{BIAS}"),
    ("decoder_norm.weight", "decoder.final_layer_norm.weight"),
]
INNER = ("blocks.{layer}.feed.inner", f"{ENCODER}.layer.1.DenseReluDense")
DECODER_INNER = ("decoder.{layer}.feed.inner", f"{DECODER}.layer.2.DenseReluDense")
EMBEDDING = "shared.weight"
SHARED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
HEAD = "lm_head.weight"
# Old files have a relative bias for cross-attention, which no release has ever read.
UNREAD = ["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"]

# ----------------------------------------------------------------------------------- config.json

ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}
SILENT = (
    # fields of training, generation and unsupported heads
    *("initializer_factor", "bos_token_id", "classifier_dropout"),
    *("n_positions", "scalable_attention"),  # fields of old files that no release reads
)
FEED = ("feed_forward_proj", "dense_act_fn", "is_gated_act")  # read together
OUTPUT = ("tie_word_embeddings", "scale_decoder_outputs")
ENCODER_FIELDS = {
    **config_table.of_kind(
        Size,
        vocab_size=("vocab_size", 32128),
        d_model=("d_model", 512),
        d_ff=("d_ff", 2048),
        heads=("num_heads", 8),
        head_dim=("d_kv", 64),
        layers=("num_layers", 6),
        buckets=("relative_attention_num_buckets", 32),
        max_distance=("relative_attention_max_distance", 128),
    ),
    "dropout": config_table.dropout("dropout_rate", 0.1),
    "norm_eps": config_table.Field("layer_norm_epsilon", 1e-6, Epsilon),
    "pad": config_table.TokenField("pad_token_id", 0, TokenId),
}
# The defaults of mT5 and umT5 are those of their small models.
MULTILINGUAL = config_table.of_kind(
    Size,
    vocab_size=("vocab_size", 250112),
    d_ff=("d_ff", 1024),
    heads=("num_heads", 6),
    layers=("num_layers", 8),
)
# Of the whole model, beside those of its encoder; the first two may be absent.
DECODER_FIELDS = {
    "decoder_layers": config_table.Field("num_decoder_layers", None, Size),
    "bos": config_table.TokenField("decoder_start_token_id", None, TokenId),
    "eos": config_table.TokenField("eos_token_id", 1, TokenId, several=True),
}


@dataclass(frozen=True)
class T5Fields(config_table.ConfigTable):
    """The fields of an encoder, and those that several fields of theirs decide.

    feed: `feed_forward_proj` where it is absent.
    """

    feed: str = "relu"

    @property
    def theirs(self) -> dict[str, str]:
        of_decoder = {ours: field.theirs for ours, field in DECODER_FIELDS.items()}
        return super().theirs | of_decoder | {"activation": FEED[0]}

    def read(self, config: config_table.ConfigJson) -> config_table.Values:
        options = super().read(config)
        gated, feed_activation = _feed(config, self.feed)
        buckets, distance = options["buckets"], options["max_distance"]
        if buckets < 4:
            raise config_table.unsupported("relative_attention_num_buckets", "at least 4", buckets)
        if distance <= buckets // 2:
            must = f"above half of `relative_attention_num_buckets` ({buckets // 2})"
            raise config_table.unsupported("relative_attention_max_distance", must, distance)
        return options | {"gated": gated, "activation": feed_activation}

    def write(self, config: Any) -> config_table.Values:
        theirs = {ours: name for name, ours in [*config_table.ACTIVATIONS.items()][::-1]}[
            config.activation
        ]
        # "gated-gelu" means its approximation.
        spelled = "gelu_python" if config.gated and theirs == "gelu" else theirs
        feed = f"gated-{spelled}" if config.gated else spelled
        feed = "gated-gelu" if feed == "gated-gelu_new" else feed
        values = dict(zip(FEED, (feed, spelled, config.gated), strict=True))
        return {**super().write(config), **values}


def _feed(config: config_table.ConfigJson, absent: str) -> tuple[bool, str]:
    """Whether feed-forward layers are gated, and our name of their activation.

    Raises:
        ConfigError: `transformers` does not read such a field, or has no such activation.
    """
    feed = config.get("feed_forward_proj", absent)
    parts = feed.split("-") if isinstance(feed, str) else []
    if not (len(parts) == 1 or len(parts) == 2 and parts[0] == "gated"):
        raise config_table.unsupported(
            "feed_forward_proj", "an activation, or `gated-` and one", feed
        )
    gated = config_table.Field("is_gated_act", None, bool | None).read(config)
    implied = {FEED[0]: "gelu_new" if feed == "gated-gelu" else parts[-1]}
    computed = config_table.activation(FEED[1], None).read(config) or config_table.activation(
        FEED[0], None
    ).read(implied)
    return len(parts) == 2 if gated is None else gated, computed


# ----------------------------------------------------------------------------------- the encoder


@dataclass(frozen=True)
class T5EncoderLayout(encoder_layout.EncoderLayout):
    """The encoder alone, and under the head of tags."""

    ENDINGS: ClassVar[Mapping[tuple[str, ...], str]] = {
        (): "EncoderModel",
        ("tags",): "ForTokenClassification",
    }

    def names(self, kinds: Sequence[str], config: Any) -> Names:
        body = [*self.body, _inner(*INNER, config.gated)]
        table = encoder_layout.EncoderLayout.names(replace(self, body=body), kinds, config)
        shared = self.prefix + "shared.weight"
        table.duplicates |= {self.prefix + SHARED[0]: shared}
        return table


# ----------------------------------------------------------------------------------- both


@dataclass(frozen=True)
class T5Layout(EncoderDecoderLayout):
    """How one family is published; the encoder alone, and under the head of tags, is `heads`."""

    def write(self, model: Any) -> tuple[config_table.Values, dict[str, Tensor]]:
        config, tensors = super().write(model)
        if type(model) is not T5:
            return config | {"is_encoder_decoder": False}, tensors
        # Releases of `transformers` before 5 divide by sqrt(D) where the output is tied and nowhere
        # else; later ones where `scale_decoder_outputs` is true.
        ours = model.config
        for name, field in DECODER_FIELDS.items():
            config[field.theirs] = getattr(ours, name)
        config |= dict(zip(OUTPUT, (ours.tied, ours.scale_output), strict=True))
        return config, tensors

    def read(self, config: config_table.ConfigJson, tensors: Mapping[str, Tensor]) -> nn.Module:
        # A whole model is one with tensors of a decoder.
        assert self.heads is not None
        named = (config.get("architectures") or [""])[0]
        has_decoder = any(name.startswith("decoder.") for name in tensors)
        if named in self.heads.known_architectures or not has_decoder:
            of_decoder = ("decoder.", "lm_head.")
            encoder = {
                name: tensor
                for name, tensor in tensors.items()
                if not name.removeprefix("transformer.").startswith(of_decoder)
            }
            fields = {k: v for k, v in config.items() if k not in (*OUTPUT, "num_decoder_layers")}
            return self.heads.read(fields | {"is_encoder_decoder": False}, encoder)
        refused = [self.family + ending for ending in self.unread]
        encoder_layout.architecture_in(
            config, self.known_architectures, refused, "it is not supported"
        )
        # A file may have the embedding only under the name of a stack.
        of_stacks = [tensors[name] for name in SHARED if name in tensors]
        tensors = {EMBEDDING: of_stacks[0], **tensors} if of_stacks else tensors
        options = self.config.read({"is_encoder_decoder": True, **config})
        defaults = {
            "num_decoder_layers": options["layers"],
            "decoder_start_token_id": options["pad"],
        }
        absent = {name: value for name, value in defaults.items() if config.get(name) is None}
        options |= {k: field.read({**config, **absent}) for k, field in DECODER_FIELDS.items()}
        tied, scales = is_tied(config, tensors), self._scales_output(config)
        return self._filled(T5Config(**options, tied=tied, scale_output=scales), tensors)

    def names(self, config: Any) -> Names:
        rows = [*WHOLE, _inner("encoder." + INNER[0], INNER[1], config.gated)]
        rows.append(_inner(*DECODER_INNER, config.gated))
        tied = {"embedding.weight": "encoder.embedding.weight"}
        duplicates = dict.fromkeys(SHARED, EMBEDDING)
        if config.tied:
            tied["head.weight"] = "encoder.embedding.weight"
            duplicates[HEAD] = EMBEDDING
        else:
            rows.append(("head.weight", HEAD))
        return Names(rows, tied=tied, duplicates=duplicates, ignored=UNREAD)

    def _scales_output(self, config: config_table.ConfigJson) -> bool:
        """Whether hidden states are divided by sqrt(D) before the output."""
        tie, scale = (config.get(name) for name in OUTPUT)
        for name, value in zip(OUTPUT, (tie, scale), strict=True):
            if not isinstance(value, bool | None):
                raise config_table.unsupported(name, "true or false", value)
        if scale is not None:
            return scale
        # `transformers` 5 never scales mT5's output, but always writes `tie_word_embeddings: true`.
        release = re.match("[0-9]+", str(config.get("transformers_version")))
        never = self.model_type == "mt5" and release is not None and int(release[0]) >= 5
        return tie is not False and not never


def is_tied(config: config_table.ConfigJson, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the embedding is the output, too: the tensors have no other one.

    Two equal ones are one, unless config.json says that they are not tied.
    """
    head, shared = tensors.get(HEAD), tensors.get(EMBEDDING)
    if head is None or shared is None:
        return True
    return config.get("tie_word_embeddings") is not False and torch.equal(head, shared)


def _layout(model_type: str, family: str, feed: str, **changes: config_table.Field) -> T5Layout:
    """The layout of a family; `changes`: fields with other defaults than T5's."""
    table = T5Fields(
        {**ENCODER_FIELDS, **changes},
        {"is_encoder_decoder": (True,)},
        (*SILENT, *FEED, *OUTPUT, "num_decoder_layers", "eos_token_id"),
        ALIASES,
        feed=feed,
        only={"max_length": None, "bias_per_layer": model_type == "umt5"},
    )
    alone = replace(table, fixed={"is_encoder_decoder": (False,)})
    encoder = T5EncoderLayout(
        model=T5Encoder,
        family=family,
        model_type=model_type,
        config=alone,
        prefix="transformer.",
        body=BODY,
        adapted=("q", "v"),
        heads={"tags": encoder_layout.HeadLayout(encoder_layout.affine("output", "classifier"))},
    )
    return T5Layout(
        model=T5,
        model_type=model_type,
        family=family,
        rows=WHOLE,
        config=table,
        endings=("ForConditionalGeneration", "WithLMHeadModel"),
        unread=("ForSequenceClassification", "ForQuestionAnswering"),
        heads=encoder,
        prefix="transformer.",
        adapted=("q", "v"),
    )


T5_LAYOUT = _layout("t5", "T5", "relu")
MT5_LAYOUT = _layout("mt5", "MT5", "gated-gelu", **MULTILINGUAL)
UMT5_LAYOUT = _layout("umt5", "UMT5", "gated-gelu", **MULTILINGUAL)
