"""The published layout of encoder-decoders of the Transformer's shape: fairseq's names of layers.

    model.encoder.layers.0.self_attn.q_proj.weight      model.decoder.layers.0.encoder_attn. ...

Marian, Pegasus, BART, mBART and M2M-100 have it. They differ in the order of norms, in positions
and in what stands around the layers; each has a file or a table of its own.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from regard.checkpoints.filling import assign
from regard.checkpoints.formats.config_table import (
    GENERATION,
    ConfigTable,
    Field,
    TokenField,
    activation,
    dropout,
    unsupported,
)
from regard.checkpoints.names import Names, Tensors, Transform, keep, split
from regard.errors import ConfigError
from regard.models.check_config import check_consistent, check_sizes
from regard.models.config import Size, TokenId
from regard.models.transformer import Transformer

# ----------------------------------------------------------------------------------- weights

BIAS = "final_logits_bias"
EMBEDDING = "model.shared.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
HEAD = "lm_head.weight"


def _row(tensors: Tensors) -> Tensors:
    return [tensor.squeeze(0) if tensor.dim() == 2 else tensor for tensor in tensors]


ROW = Transform(read=_row, write=lambda tensors: [t[None] for t in tensors])  # (1, V) <-> (V,)


@dataclass(frozen=True)
class Order:
    """How the dimensions of width `d_model` are ordered: of what layers read and of what they
    write.
    """

    reads: Transform = keep
    writes: Transform = keep

    def norm(self, ours: str, theirs: str) -> list[tuple]:
        """A norm of hidden states, or a layer that writes them."""
        return [(f"{ours}.{kind}", f"{theirs}.{kind}", self.writes) for kind in ("weight", "bias")]

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
        """The embedding and all layers."""
        encoder, decoder = "model.encoder.layers.{layer}", "model.decoder.layers.{layer}"
        return [
            ("embedding.weight", "model.shared.weight", self.reads),
            *self._block("encoder.{layer}", encoder),
            *self._block("decoder.{layer}", decoder),
            *self._cross("decoder.{layer}", decoder),
        ]


def last_norms(order: Order) -> list[tuple]:
    """Those after the last layers."""
    return [
        *order.norm("encoder_norm", "model.encoder.layer_norm"),
        *order.norm("decoder_norm", "model.decoder.layer_norm"),
    ]


# ----------------------------------------------------------------------------------- config.json

FIELDS: dict[str, Field] = {
    "d_model": Field("d_model", 1024, Size),
    "d_ff": Field("encoder_ffn_dim", 4096, Size),
    "decoder_d_ff": Field("decoder_ffn_dim", 4096, Size),
    "heads": Field("encoder_attention_heads", 16, Size),
    "decoder_heads": Field("decoder_attention_heads", 16, Size),
    "encoder_layers": Field("encoder_layers", 12, Size),
    "decoder_layers": Field("decoder_layers", 12, Size),
    "dropout": dropout("dropout", 0.1),
    "attention_dropout": dropout("attention_dropout", 0.0),
    "activation_dropout": dropout("activation_dropout", 0.0),
    "activation": activation("activation_function", "gelu"),
    "max_length": Field("max_position_embeddings", 1024, Size),
    "tied": Field("tie_word_embeddings", True, bool),
}
DECODER = {"decoder_d_ff": "d_ff", "decoder_heads": "heads"}  # ours, None where it is the encoder's
ALIASES = {
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
}


def scale_embedding(absent: bool) -> dict[str, Field]:
    """Whether embeddings are multiplied by sqrt(d_model)."""
    return {"scale_embedding": Field("scale_embedding", absent, bool)}


def token_fields(vocab_size: int, pad: int, start: int | None, eos: int) -> dict[str, Field]:
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
    *(*GENERATION, "bos_token_id", "decoder_vocab_size"),
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

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        values = super().read(config)
        values |= {ours: None for ours, side in DECODER.items() if values[ours] == values[side]}
        return values if values["tied"] else {**values, "source_vocab_size": values["vocab_size"]}

    def can_write(self, config: Any) -> bool:
        return super().can_write(config) and self.has_vocabularies(config)

    def has_vocabularies(self, config: Any) -> bool:
        """Whether they have a form for its vocabularies, here one: one matrix or three."""
        return bool(config.source_vocab_size == (None if config.tied else config.vocab_size))

    def write(self, config: Any) -> dict[str, Any]:
        table = super().write(config)
        for ours, side in DECODER.items():
            table[self.fields[ours].theirs] = getattr(config, ours) or getattr(config, side)
        return table


@dataclass(frozen=True)
class EncoderDecoderLayout:
    """How one of these models is published.

    rows: the table of names without the bias of the output.  biased: whether they have one.
    others: names of architectures that hold the same model.  unsupported: architecture -> why not.
    computed: names of tables that the model computes and that are not read.
    """

    model: type[nn.Module]
    model_type: str
    family: str
    architecture: str
    rows: Sequence[tuple]
    config: EncoderDecoderFields
    biased: bool = True
    order: Order = Order()
    others: tuple[str, ...] = ()
    unsupported: Mapping[str, str] = field(default_factory=dict)
    computed: tuple[str, ...] = ()
    prefix: str = "model."
    adapted: tuple[str, ...] = ("q_proj", "v_proj")

    @property
    def known_architectures(self) -> Collection[str]:
        return (self.architecture, *self.others)

    def has_heads_of(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
        """See `Layout`; the output is no head of its own."""
        return True

    def names_of(self, model: nn.Module) -> Names:
        """See `Layout`; without ties, theirs has a third embedding, which it does not read."""
        assert isinstance(model, Transformer)
        config, bias = model.config, model.config.output_bias
        rows, zero = ([("head.bias", BIAS, ROW)], []) if bias else ([], [BIAS])
        if config.source_vocab_size is None:
            return Names(
                [*self.rows, *rows],
                tied={"head.weight": "embedding.weight"},
                duplicates=dict.fromkeys((SOURCE, TARGET, HEAD), EMBEDDING),
                ignored=self.computed,
                zero=zero,
            )
        reads = self.order.reads
        rows += [("source_embedding.weight", SOURCE, reads), ("embedding.weight", TARGET, reads)]
        rows += [] if config.tied else [("head.weight", HEAD, reads)]
        return Names(
            [*(row for row in self.rows if row[0] != "embedding.weight"), *rows],
            tied={"head.weight": "embedding.weight"} if config.tied else {},
            duplicates={HEAD: TARGET} if config.tied else {},
            ignored=(*self.computed, EMBEDDING),
            zero=zero,
        )

    def holds(self, model: nn.Module) -> bool:
        """See `Layout`; with other positions nobody has the architecture."""
        if type(model) is not self.model:
            return False
        assert isinstance(model, Transformer)
        config = model.config
        if config.positions != type(config).positions:
            return False
        return self.config.can_write(config) and (self.biased or not config.output_bias)

    def write(self, model: Transformer) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config: dict[str, Any] = {
            "model_type": self.model_type,
            "architectures": [self.architecture],
            **self.config.write(model.config),
            "forced_eos_token_id": None,
        }
        return config, self.names_of(model).write(model.state_dict())

    def read(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
        for name in config.get("architectures") or ():
            if name in self.unsupported:
                must = " or ".join(self.known_architectures)
                raise unsupported("architectures", must, name, self.unsupported[name])
        if not any(name.startswith(self.prefix) for name in tensors):  # without the output
            tensors = {self.prefix + name: tensor for name, tensor in tensors.items()}
        ours: Any = self.model.Config(**self.config.read(config))  # type: ignore[attr-defined]
        check_consistent(ours, "config.json", ConfigError, self.config.theirs)
        if not ours.tied and EMBEDDING in tensors:  # release 4 unties the output alone
            tensors = dict.fromkeys((SOURCE, TARGET), tensors[EMBEDDING]) | dict(tensors)
        bias = tensors.get(BIAS)
        if self.biased and bias is not None and (bias.is_meta or bool(bias.any())):
            ours = type(ours)(**{**vars(ours), "output_bias": True})
        check_sizes(ours, tensors, "config.json", ConfigError, self.config.theirs)
        model = self.model(ours)
        assign(model, self.names_of(model).read(tensors, model.state_dict()))
        return model

    def architecture_of(self, model: nn.Module) -> str:
        return self.architecture

    def with_architecture(
        self, model: nn.Module, name: str, tensors: Mapping[str, Tensor]
    ) -> nn.Module:
        """See `Layout`; there is one architecture."""
        if name not in self.known_architectures:
            raise ConfigError(f"`architectures` must name {self.architecture}, but names {name!r}.")
        return model

    def in_their_order(self, hidden: Tensor) -> Tensor:
        return self.order.reads.write([hidden.flatten(0, -2)])[0].view(hidden.shape)
