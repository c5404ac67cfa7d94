"""The published layouts of encoder-decoders of the Transformer's shape: fairseq's names of layers.

    model.encoder.layers.0.self_attn.q_proj.weight      model.decoder.layers.0.encoder_attn. ...

Marian (post-norm), Pegasus (pre-norm), BART, mBART, M2M-100 and NLLB have it. They differ in the
order of norms, in positions and in what stands around the layers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.checkpoints.filling import Weights, assign
from regard.checkpoints.formats import encoder_layout
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
from regard.checkpoints.names import Names, Transform, interleave, keep, split
from regard.errors import CheckpointError, ConfigError
from regard.models.bart import Bart, BartAsEncoder, MBart, MBartAsEncoder
from regard.models.check_config import check_consistent, check_sizes
from regard.models.config import Size, TokenId
from regard.models.transformer import M2M100, PreNormTransformer, Transformer

# ----------------------------------------------------------------------------------- weights

BIAS = "final_logits_bias"
EMBEDDING = "model.shared.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
HEAD = "lm_head.weight"


ROW = Transform(  # (1, V), or (V,), there
    read=lambda tensors: [t.squeeze(0) if t.dim() == 2 else t for t in tensors],
    write=lambda tensors: [t[None] for t in tensors],
)


@dataclass(frozen=True)
class Order:
    """How the dimensions of width `d_model` are ordered: of what layers read and of what they
    write.
    """

    reads: Transform = keep
    writes: Transform = keep

    def norm(self, ours: str, theirs: str) -> list[tuple]:
        """A norm of hidden states, or a layer that writes them."""
        return encoder_layout.affine(ours, theirs, self.writes)

    def _attention(self, ours: str, theirs: str, letters: str) -> list[tuple]:
        """`letters` are their projections that `ours` packs into one matrix."""
        weights = tuple(f"{theirs}.{letter}_proj.weight" for letter in letters)
        biases = tuple(f"{theirs}.{letter}_proj.bias" for letter in letters)
        pack = split(len(letters)).reversed()
        return [
            (f"{ours}.weight", weights, pack.then(self.reads)),
            (f"{ours}.bias", biases, pack),
        ]

    def _block(self, ours: str, theirs: str) -> list[tuple]:
        return [
            *self._attention(f"{ours}.attention.query_key_value", f"{theirs}.self_attn", "qkv"),
            *self.norm(f"{ours}.attention.output", f"{theirs}.self_attn.out_proj"),
            *self.norm(f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm"),
            (f"{ours}.feed.inner.weight", f"{theirs}.fc1.weight", self.reads),
            (f"{ours}.feed.inner.bias", f"{theirs}.fc1.bias"),
            *self.norm(f"{ours}.feed.outer", f"{theirs}.fc2"),
            *self.norm(f"{ours}.feed_norm", f"{theirs}.final_layer_norm"),
        ]

    def _cross(self, ours: str, theirs: str) -> list[tuple]:
        return [
            *self._attention(f"{ours}.cross.query", f"{theirs}.encoder_attn", "q"),
            *self._attention(f"{ours}.cross.key_value", f"{theirs}.encoder_attn", "kv"),
            *self.norm(f"{ours}.cross.output", f"{theirs}.encoder_attn.out_proj"),
            *self.norm(f"{ours}.cross_norm", f"{theirs}.encoder_attn_layer_norm"),
        ]

    def blocks(self) -> list[tuple]:
        """The embedding and all layers; their names without the prefix."""
        encoder, decoder = "encoder.layers.{layer}", "decoder.layers.{layer}"
        return [
            ("embedding.weight", "shared.weight", self.reads),
            *self._block("encoder.{layer}", encoder),
            *self._block("decoder.{layer}", decoder),
            *self._cross("decoder.{layer}", decoder),
        ]


def last_norms(order: Order) -> list[tuple]:
    """Those after the last layers."""
    return [
        *order.norm("encoder_norm", "encoder.layer_norm"),
        *order.norm("decoder_norm", "decoder.layer_norm"),
    ]


# ----------------------------------------------------------------------------------- config.json

FIELDS: dict[str, Field] = {
    **of_kind(
        Size,
        d_model=("d_model", 1024),
        d_ff=("encoder_ffn_dim", 4096),
        decoder_d_ff=("decoder_ffn_dim", 4096),
        heads=("encoder_attention_heads", 16),
        decoder_heads=("decoder_attention_heads", 16),
        encoder_layers=("encoder_layers", 12),
        decoder_layers=("decoder_layers", 12),
        max_length=("max_position_embeddings", 1024),
    ),
    "dropout": dropout("dropout", 0.1),
    "attention_dropout": dropout("attention_dropout", 0.0),
    "activation_dropout": dropout("activation_dropout", 0.0),
    "activation": activation("activation_function", "gelu"),
    "tied": Field("tie_word_embeddings", True, bool),
    "scale_embedding": Field("scale_embedding", False, bool),  # by sqrt(d_model)
}
DECODER = {"decoder_d_ff": "d_ff", "decoder_heads": "heads"}  # ours, None where it is the encoder's
ALIASES = {
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
}


def token_fields(vocab_size: int, pad: int, start: int, eos: int) -> dict[str, Field]:
    """The fields of tokens, with their defaults in one model type."""
    return {
        "vocab_size": Field("vocab_size", vocab_size, Size),
        "pad": TokenField("pad_token_id", pad, TokenId),
        "bos": TokenField("decoder_start_token_id", start, TokenId),
        "eos": TokenField("eos_token_id", eos, TokenId, several=True),
    }


FIXED = {"is_encoder_decoder": (True,), "is_decoder": (False,)}
SILENT = (
    # of training alone: whole layers are left out, which changes no result of the trained model
    *("encoder_layerdrop", "decoder_layerdrop", "init_std"),
    # of generation
    *("bos_token_id", "decoder_vocab_size"),
    # of old files
    *("classif_dropout", "classifier_dropout", "extra_pos_embeddings", "gradient_checkpointing"),
    *("force_bos_token_to_be_generated", "save_step", "static_position_embeddings"),
    *("normalize_embedding", "add_bias_logits", "normalize_before", "add_final_layer_norm"),
    "share_encoder_decoder_embeddings",
)


@dataclass(frozen=True)
class EncoderDecoderFields(ConfigTable):
    """The fields of both sides; without ties, theirs has three embeddings."""

    fixed: Mapping[str, Sequence[Any]] = field(default_factory=lambda: FIXED)
    silent: Sequence[str] = SILENT
    aliases: Mapping[str, str] = field(default_factory=lambda: ALIASES)

    def read(self, config: ConfigJson) -> Values:
        values = super().read(config)
        values |= {ours: None for ours, side in DECODER.items() if values[ours] == values[side]}
        return values if values["tied"] else {**values, "source_vocab_size": values["vocab_size"]}

    def can_write(self, config: Any) -> bool:
        if config.positions != type(config).positions:  # nobody has the architecture with others
            return False
        return super().can_write(config) and self.has_vocabularies(config)

    def has_vocabularies(self, config: Any) -> bool:
        """Whether they have a form for its vocabularies, here one: one matrix or three."""
        return bool(config.source_vocab_size == (None if config.tied else config.vocab_size))

    def write(self, config: Any) -> Values:
        table = super().write(config) | {"forced_eos_token_id": None}
        for ours, side in DECODER.items():
            table[self.fields[ours].theirs] = getattr(config, ours) or getattr(config, side)
        return table


@dataclass(frozen=True)
class EncoderDecoderLayout:
    """How one of these models is published, with the methods of `EncoderLayout`: whole, or under a
    head.

    rows: the table of names without the output, theirs after the prefix.
    endings: how the names of the whole model's architectures end; the first is written.
    unread: how those end that are not supported.
    computed: names of tables that the model computes and that are not read.
    heads: the layout under a head; None where there is none.
    """

    model: type[nn.Module]
    model_type: str
    family: str
    rows: Sequence[tuple]
    config: ConfigTable
    endings: tuple[str, ...] = ("ForConditionalGeneration", "Model")
    unread: tuple[str, ...] = ("ForCausalLM",)
    order: Order = Order()
    computed: tuple[str, ...] = ()
    heads: encoder_layout.EncoderLayout | None = None
    prefix: str = "model."
    adapted: tuple[str, ...] = ("q_proj", "v_proj")

    @property
    def whole_architectures(self) -> list[str]:
        """The names of the whole model."""
        return [self.family + ending for ending in self.endings]

    @property
    def known_architectures(self) -> Collection[str]:
        under_heads = self.heads.known_architectures if self.heads else ()
        return [*self.whole_architectures, *under_heads]

    def has_heads_of(self, config: ConfigJson, tensors: Weights) -> bool:
        return True  # the output is no head of its own

    def _under_head(self, model: nn.Module) -> encoder_layout.EncoderLayout | None:
        """The layout of a model under a head; None for the whole model."""
        return None if type(model) is self.model else self.heads

    def holds(self, model: Any) -> bool:
        if type(model) is self.model:
            return self.config.can_write(model.config)
        return self.heads is not None and self.heads.holds(model)

    def write(self, model: Any) -> tuple[Values, dict[str, Tensor]]:
        if heads := self._under_head(model):
            return heads.write(model)
        config = {"model_type": self.model_type, "architectures": self.whole_architectures[:1]}
        return config | self.config.write(model.config), self.names_of(model).write(
            model.state_dict()
        )

    def read(self, config: ConfigJson, tensors: Weights) -> nn.Module:
        named = (config.get("architectures") or [""])[0]
        if self.heads is not None:
            signs = {head.sign for head in self.heads.heads.values()}
            under_head = named in self.heads.known_architectures
            of_head = named not in self.whole_architectures and not signs.isdisjoint(tensors)
            if under_head or of_head:
                return self.heads.read(config, tensors)
        refused = [self.family + ending for ending in self.unread]
        encoder_layout.architecture_in(
            config, self.known_architectures, refused, "it is not supported"
        )
        if not any(name.startswith(self.prefix) for name in tensors):  # without the output
            tensors = {self.prefix + name: tensor for name, tensor in tensors.items()}
        options = self.config.read(config)
        if not options["tied"] and EMBEDDING in tensors:  # release 4 unties the output alone
            tensors = dict.fromkeys((SOURCE, TARGET), tensors[EMBEDDING]) | dict(tensors)
        bias = tensors.get(BIAS)
        if "output_bias" not in self.config.only and bias is not None:
            options["output_bias"] = bias.is_meta or bool(bias.any())
        return self._filled(self.model.Config(**options), tensors)  # type: ignore[attr-defined]

    def _filled(self, config: Any, tensors: Weights) -> nn.Module:
        """The whole model of a configuration of ours, with these weights."""
        check_consistent(config, "config.json", ConfigError, self.config.theirs)
        check_sizes(config, tensors, "config.json", ConfigError, self.config.theirs)
        model = self.model(config)
        assign(model, self.names_of(model).read(tensors, model.state_dict()))
        return model

    def names_of(self, model: Any) -> Names:
        heads = self._under_head(model)
        return self.names(model.config) if heads is None else heads.names_of(model)

    def names(self, config: Any) -> Names:
        """Of a whole model; without ties, theirs has a third embedding, which it does not read."""
        whole = [
            (ours, encoder_layout.prefixed(self.prefix, theirs), *rest)
            for ours, theirs, *rest in self.rows
        ]
        rows, zero = ([("head.bias", BIAS, ROW)], []) if config.output_bias else ([], [BIAS])
        if config.source_vocab_size is None:
            return Names(
                [*whole, *rows],
                tied={"head.weight": "embedding.weight"},
                duplicates=dict.fromkeys((SOURCE, TARGET, HEAD), EMBEDDING),
                ignored=self.computed,
                zero=zero,
            )
        reads = self.order.reads
        rows += [("source_embedding.weight", SOURCE, reads), ("embedding.weight", TARGET, reads)]
        rows += [] if config.tied else [("head.weight", HEAD, reads)]
        return Names(
            [*(row for row in whole if row[0] != "embedding.weight"), *rows],
            tied={"head.weight": "embedding.weight"} if config.tied else {},
            duplicates={HEAD: TARGET} if config.tied else {},
            ignored=(*self.computed, EMBEDDING),
            zero=zero,
        )

    def architecture_of(self, model: nn.Module) -> str:
        heads = self._under_head(model)
        return self.whole_architectures[0] if heads is None else heads.architecture_of(model)

    def with_architecture(self, model: Any, name: str, tensors: Weights) -> Any:
        if heads := self._under_head(model):
            return heads.with_architecture(model, name, tensors)
        if name not in self.whole_architectures:  # it has no other one
            whole = self.whole_architectures[0]
            raise ConfigError(f"`architectures` must name {whole}, but names {name!r}.")
        return model

    def in_their_order(self, hidden: Tensor) -> Tensor:
        return self.order.reads.write([hidden.flatten(0, -2)])[0].view(hidden.shape)


# ---------------------------------------------------------------------------------- Marian, Pegasus
# Both put all sines of a position before all cosines; the paper and we put the sine and the cosine
# of one frequency side by side. So every tensor with a dimension of width `d_model` is reordered
# along it: embeddings, the layers that read hidden states, those that write them, and norms. The
# dimensions inside heads keep their order.

POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
TARGET_SIZE = "decoder_vocab_size"
ROUNDING = 0.02  # of sines in half precision
HALVES = Order(reads=interleave(1), writes=interleave(0))  # of a matrix (out, in)


@dataclass(frozen=True)
class SinusoidalLayout(EncoderDecoderLayout):
    """A layout whose files may hold the tables of sines and cosines."""

    def read(self, config: ConfigJson, tensors: Weights) -> nn.Module:
        """The model of a file.

        Raises:
            CheckpointError: a table of positions is another one, such as one that was trained.
        """
        for name in tensors.keys() & {*POSITIONS}:
            table = tensors[name].float()
            if table.dim() != 2:
                continue
            positions, width = torch.arange(table.size(0)), table.size(1)
            angles = positions[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
            sinusoids = torch.cat([angles.sin(), angles.cos()], 1)  # (N, D / 2) twice -> (N, D)
            if width % 2 or not torch.allclose(table, sinusoids, atol=ROUNDING):
                raise CheckpointError(f"{name} must be the sines and cosines of the positions.")
        return super().read(config, tensors)


class MarianFields(EncoderDecoderFields):
    """Sources and targets may have vocabularies of their own; `vocab_size` is that of sources."""

    shared: ClassVar[Field] = Field("share_encoder_decoder_embeddings", True, bool)

    def read(self, config: ConfigJson) -> Values:
        values = super().read(config)
        source, size = values["vocab_size"], config.get(TARGET_SIZE)
        if self.shared.read(config):
            if size not in (None, source):
                raise unsupported(TARGET_SIZE, repr(source), size)
            return values
        target = source if size is None else Field(TARGET_SIZE, None, Size).read(config)
        if values["pad"] >= source:
            raise unsupported("pad_token_id", f"an id below `vocab_size` ({source})", values["pad"])
        return {**values, "vocab_size": target, "source_vocab_size": source}

    def has_vocabularies(self, config: Any) -> bool:
        return bool(config.tied or config.source_vocab_size is not None)

    def write(self, config: Any) -> Values:
        table = {**super().write(config), self.shared.theirs: config.source_vocab_size is None}
        if config.source_vocab_size is None:
            return table
        return {**table, "vocab_size": config.source_vocab_size, TARGET_SIZE: config.vocab_size}


MARIAN = SinusoidalLayout(
    Transformer,
    "marian",
    "Marian",
    HALVES.blocks(),
    MarianFields(FIELDS | token_fields(58101, pad=58100, start=58100, eos=0)),
    endings=("MTModel", "Model"),
    order=HALVES,
    computed=POSITIONS,
)
PEGASUS = SinusoidalLayout(
    PreNormTransformer,
    "pegasus",
    "Pegasus",
    [*HALVES.blocks(), *last_norms(HALVES)],
    EncoderDecoderFields(FIELDS | token_fields(50265, pad=0, start=0, eos=1)),
    order=HALVES,
    computed=POSITIONS,
)

# ----------------------------------------------------------------------------------- BART, mBART

START = "decoder_start_token_id"
ROWS = [
    *Order().blocks(),
    ("positions.vectors.weight", "encoder.embed_positions.weight"),
    ("decoder_positions.vectors.weight", "decoder.embed_positions.weight"),
    *Order().norm("embedding_norm", "encoder.layernorm_embedding"),
    *Order().norm("decoder_embedding_norm", "decoder.layernorm_embedding"),
]


class BartFields(EncoderDecoderFields):
    """The fields of the whole model under a head."""

    def read(self, config: ConfigJson) -> Values:
        values = super().read(config)
        if not values["tied"]:
            said = "under a head there is no output to untie"
            raise unsupported("tie_word_embeddings", "true", False, said)
        return values


class MBartFields(BartFields):
    """Under a head the decoder starts with the last token of a text, not with a token of its own,
    which config.json then need not have.
    """

    def read(self, config: ConfigJson) -> Values:
        if config.get(START) is None:
            config = {**config, START: config.get("eos_token_id", 2)}
        return super().read(config)


class BartHeadsLayout(encoder_layout.EncoderLayout):
    """The whole model under a head; without one it is published with its output."""

    ENDINGS: ClassVar[Mapping[tuple[str, ...], str]] = {
        ("classes",): "ForSequenceClassification",
        ("span",): "ForQuestionAnswering",
    }

    def names(self, kinds: Sequence[str], config: Any) -> Names:
        table = super().names(kinds, config)
        table.tied |= {"encoder.bart.head.weight": "encoder.bart.embedding.weight"}
        table.duplicates |= dict.fromkeys((SOURCE, TARGET), EMBEDDING)
        return table


BART_FIELDS = FIELDS | token_fields(50265, pad=1, start=2, eos=2)
BART_HEADS = BartHeadsLayout(
    model=BartAsEncoder,
    family="Bart",
    model_type="bart",
    config=BartFields(BART_FIELDS | {"head_dropout": dropout("classifier_dropout", 0.0)}),
    prefix="model.",
    body=[(f"bart.{ours}", *rest) for ours, *rest in ROWS],
    adapted=("q_proj", "v_proj"),
    heads={
        "classes": encoder_layout.HeadLayout(
            [
                *encoder_layout.affine("inner.dense", "classification_head.dense"),
                *encoder_layout.affine("output", "classification_head.out_proj"),
            ]
        ),
        "span": encoder_layout.TOKEN_HEADS["span"],
    },
)
BART = EncoderDecoderLayout(
    Bart, "bart", "Bart", ROWS, EncoderDecoderFields(BART_FIELDS), heads=BART_HEADS
)
MBART_ROWS = [*ROWS, *last_norms(Order())]
MBART = replace(
    BART,
    model=MBart,
    model_type="mbart",
    family="MBart",
    rows=MBART_ROWS,
    heads=replace(
        BART_HEADS,
        model=MBartAsEncoder,
        family="MBart",
        model_type="mbart",
        config=MBartFields(BART_HEADS.config.fields),
        body=[(f"bart.{ours}", *rest) for ours, *rest in MBART_ROWS],
    ),
)


# ----------------------------------------------------------------------------------- M2M-100, NLLB


class M2M100Fields(EncoderDecoderFields):
    """The padding has no position."""

    def read(self, config: ConfigJson) -> Values:
        values = super().read(config)
        if values["bos"] == values["pad"]:  # their program skips it when it counts positions
            must = f"another id than `pad_token_id` ({values['pad']})"
            raise unsupported(START, must, values["bos"])
        return values


M2M_100 = EncoderDecoderLayout(
    M2M100,
    "m2m_100",
    "M2M100",
    [*Order().blocks(), *last_norms(Order())],
    M2M100Fields(
        {
            **FIELDS,
            "attention_dropout": dropout("attention_dropout", 0.1),
            "activation": activation("activation_function", "relu"),
            "scale_embedding": Field("scale_embedding", True, bool),
            **token_fields(128112, pad=1, start=2, eos=2),
        },
        only={"output_bias": False},
    ),
    computed=("model.encoder.embed_positions.weights", "model.decoder.embed_positions.weights"),
)
