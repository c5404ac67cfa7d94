"""The Transformer's published layouts: Marian (post-norm) and Pegasus (pre-norm).

Both put all sines of a position before all cosines; the paper and we put the sine and the cosine of
one frequency side by side. So every tensor with a dimension of width `d_model` is reordered along
it: embeddings, the layers that read hidden states, those that write them, and norms. The dimensions
inside heads keep their order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.checkpoints.filling import assign
from regard.checkpoints.formats.config_table import (
    DECISIVE,
    GENERATION,
    Field,
    TokenField,
    check_decisive,
    dropout,
    unsupported,
    warn_ignored,
    with_own_names,
)
from regard.checkpoints.names import Names
from regard.checkpoints.transforms import interleave, split
from regard.errors import CheckpointError, ConfigError
from regard.models.check_config import check_consistent, check_sizes
from regard.models.config import Size, TokenId
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.transformer_prenorm import PreNormTransformer

# ----------------------------------------------------------------------------------- weights

POSITIONS = ["model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"]
ROUNDING = 0.02  # of sines in half precision
READS, WRITES = interleave(1), interleave(0)  # the columns and the rows of a matrix (out, in)


def _attention(ours: str, theirs: str, letters: str) -> list[tuple]:
    """Rows of one attention; `letters` are their projections that `ours` packs into one matrix."""
    weights = tuple(f"{theirs}.{letter}_proj.weight" for letter in letters)
    biases = tuple(f"{theirs}.{letter}_proj.bias" for letter in letters)
    pack = split(len(letters)).reversed()
    return [(f"{ours}.weight", weights, pack.then(READS)), (f"{ours}.bias", biases, pack)]


def _writes(ours: str, theirs: str) -> list[tuple]:
    """A layer that writes hidden states, or a norm of them."""
    return [(f"{ours}.{kind}", f"{theirs}.{kind}", WRITES) for kind in ("weight", "bias")]


def _block(ours: str, theirs: str) -> list[tuple]:
    return [
        *_attention(f"{ours}.attention.query_key_value", f"{theirs}.self_attn", "qkv"),
        *_writes(f"{ours}.attention.output", f"{theirs}.self_attn.out_proj"),
        *_writes(f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm"),
        (f"{ours}.feed.inner.weight", f"{theirs}.fc1.weight", READS),
        (f"{ours}.feed.inner.bias", f"{theirs}.fc1.bias"),
        *_writes(f"{ours}.feed.outer", f"{theirs}.fc2"),
        *_writes(f"{ours}.feed_norm", f"{theirs}.final_layer_norm"),
    ]


def _cross(ours: str, theirs: str) -> list[tuple]:
    return [
        *_attention(f"{ours}.cross.query", f"{theirs}.encoder_attn", "q"),
        *_attention(f"{ours}.cross.key_value", f"{theirs}.encoder_attn", "kv"),
        *_writes(f"{ours}.cross.output", f"{theirs}.encoder_attn.out_proj"),
        *_writes(f"{ours}.cross_norm", f"{theirs}.encoder_attn_layer_norm"),
    ]


def _names(*norms: tuple) -> Names:
    encoder, decoder = "model.encoder.layers.{layer}", "model.decoder.layers.{layer}"
    shared = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    return Names(
        [
            ("embedding.weight", "model.shared.weight", READS),
            *_block("encoder.{layer}", encoder),
            *_block("decoder.{layer}", decoder),
            *_cross("decoder.{layer}", decoder),
            *norms,
        ],
        tied={"head.weight": "embedding.weight"},
        duplicates=dict.fromkeys((*shared, "lm_head.weight"), "model.shared.weight"),
        ignored=POSITIONS,
        zero=["final_logits_bias"],
    )


# ----------------------------------------------------------------------------------- config.json

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}


# ours -> theirs; where they have two, both must be equal
FIELDS: dict[str, tuple[Field, ...]] = {
    "d_model": (Field("d_model", 1024, Size),),
    "d_ff": (Field("encoder_ffn_dim", 4096, Size), Field("decoder_ffn_dim", 4096, Size)),
    "heads": (
        Field("encoder_attention_heads", 16, Size),
        Field("decoder_attention_heads", 16, Size),
    ),
    "encoder_layers": (Field("encoder_layers", 12, Size),),
    "decoder_layers": (Field("decoder_layers", 12, Size),),
    "dropout": (dropout("dropout", 0.1),),
    "attention_dropout": (dropout("attention_dropout", 0.0),),
    "activation_dropout": (dropout("activation_dropout", 0.0),),
    "activation": (Field("activation_function", "gelu", names=ACTIVATIONS),),
    "max_length": (Field("max_position_embeddings", 1024, Size),),
}
ALIASES = {
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
}


def _tokens(vocab_size: int, pad: int, bos: int, eos: int) -> dict[str, tuple[Field, ...]]:
    """The fields of tokens, with their defaults in one model type."""
    return {
        "vocab_size": (Field("vocab_size", vocab_size, Size),),
        "pad": (TokenField("pad_token_id", pad, TokenId),),
        "bos": (TokenField("decoder_start_token_id", bos, TokenId),),
        "eos": (TokenField("eos_token_id", eos, TokenId, several=True),),
    }


# What our model does and no option changes: their name -> (value, what its absence means).
FIXED = {
    "scale_embedding": (True, False),
    "tie_word_embeddings": (True, True),
    "is_encoder_decoder": (True, True),
    "share_encoder_decoder_embeddings": (True, True),
    "is_decoder": (False, False),
}
SILENT = (
    # of training alone
    *("encoder_layerdrop", "decoder_layerdrop", "init_std"),
    # of generation
    *(*GENERATION, "bos_token_id", "decoder_vocab_size"),
    # of old files
    *("classif_dropout", "classifier_dropout", "extra_pos_embeddings"),
    "force_bos_token_to_be_generated",
)
# The same, with the values that files of each model have: (Marian's, Pegasus').
OLD_FIELDS = {
    "static_position_embeddings": (True, True),
    "normalize_embedding": (False, False),
    "add_bias_logits": (False, False),
    "normalize_before": (False, True),
    "add_final_layer_norm": (False, True),
}


@dataclass(frozen=True)
class TransformerLayout:
    """How one of our two Transformers is published."""

    model: type[nn.Module]
    model_type: str
    family: str
    architecture: str
    names: Names
    fields: Mapping[str, tuple[Field, ...]]
    prefix: str = "model."
    adapted: tuple[str, ...] = ("q_proj", "v_proj")

    @property
    def theirs(self) -> dict[str, str]:
        """Our name of each field -> theirs."""
        return {ours: both[0].theirs for ours, both in self.fields.items()}

    @property
    def known_architectures(self) -> Collection[str]:
        """See `Layout`."""
        return (self.architecture,)

    def recognized(self, tensors: Mapping[str, Tensor]) -> int:
        """See `Layout`; a model with further tensors in its body is another one, such as BART."""
        names = {name.format(layer=0) for row in self.names.rows for name in row.theirs}
        missing = {name for name in names if name not in tensors} - {"model.shared.weight"}
        others = [name for name in self.names.unknown(tensors) if name.startswith("model.")]
        return 0 if missing or others else len(names)

    def holds(self, model: nn.Module) -> bool:
        """See `Layout`; with other positions nobody has the architecture."""
        return (
            type(model) is self.model and cast(Transformer, model).config.positions == "sinusoidal"
        )

    def write(self, model: Transformer) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """See `Layout`."""
        return self.write_config(model.config), self.names.write(model.state_dict())

    def read(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
        """See `Layout`."""
        _check_positions(tensors)
        ours = self.read_config(config)
        check_sizes(ours, tensors, "config.json", ConfigError, self.theirs)
        model = self.model(ours)
        assign(model, self.names.read(tensors, model.state_dict()))
        return model

    def names_of(self, model: nn.Module) -> Names:
        """See `Layout`."""
        return self.names

    def architecture_of(self, model: nn.Module) -> str:
        """See `Layout`."""
        return self.architecture

    def with_architecture(
        self, model: nn.Module, name: str, tensors: Mapping[str, Tensor]
    ) -> nn.Module:
        """See `Layout`; there is one architecture."""
        if name != self.architecture:
            raise ConfigError(f"`architectures` must name {self.architecture}, but names {name!r}.")
        return model

    def in_their_order(self, hidden: Tensor) -> Tensor:
        """See `Layout`."""
        return READS.write([hidden.flatten(0, -2)])[0].view(hidden.shape)

    def write_config(self, config: TransformerConfig) -> dict[str, Any]:
        """config.json for a configuration of ours."""
        fields = self.fields.items()
        table = {one.theirs: getattr(config, ours) for ours, both in fields for one in both}
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture],
            **table,
            **{name: value for name, (value, _) in FIXED.items()},
            "bos_token_id": config.bos,
            "forced_eos_token_id": None,
        }

    def read_config(self, config: Mapping[str, Any]) -> TransformerConfig:
        """Our configuration for config.json.

        Raises:
            ConfigError: it asks for what our model does not compute.
        """
        config = with_own_names(config, ALIASES)
        for name, (value, absent) in FIXED.items():
            if config.get(name, absent) != value:
                raise unsupported(name, repr(value), config.get(name, absent))
        check_decisive(config, {k: v for k, v in DECISIVE.items() if k not in FIXED})
        theirs = {one.theirs for both in self.fields.values() for one in both}
        prenorm = self.model is PreNormTransformer
        usual = [n for n, values in OLD_FIELDS.items() if config.get(n) == values[prenorm]]
        warn_ignored(config, {*theirs, *ALIASES, *FIXED, *DECISIVE, *SILENT, *usual}, theirs)
        sizes = (None, config.get("vocab_size"))
        if config.get("decoder_vocab_size") not in sizes:
            raise unsupported("decoder_vocab_size", repr(sizes[1]), config["decoder_vocab_size"])
        found = TransformerConfig(**{ours: _same(config, *f) for ours, f in self.fields.items()})
        check_consistent(found, "config.json", ConfigError, self.theirs)
        return found


def _check_positions(tensors: Mapping[str, Tensor]) -> None:
    """Tables of positions in a file must be the sines and cosines that our model computes.

    Raises:
        CheckpointError: one is another table, such as one that was trained.
    """
    for name in POSITIONS:
        table = tensors.get(name)
        if table is None or table.dim() != 2:
            continue
        positions, width = torch.arange(table.size(0)), table.size(1)
        rates = 10000.0 ** (-torch.arange(0, width, 2) / width)  # (D / 2,)
        angles = positions[:, None] * rates
        wanted = torch.cat([angles.sin(), angles.cos()], 1)  # (N, D / 2) twice -> (N, D)
        if wanted.shape != table.shape or not torch.allclose(table.float(), wanted, atol=ROUNDING):
            raise CheckpointError(
                f"{name} must be the sines and cosines of the positions, as this model computes "
                "them, but is another table: the model was trained with other positions."
            )


def _same(config: Mapping[str, Any], field: Field, *others: Field) -> Any:
    """The value of a field, which further fields that are there must equal."""
    value = field.read(config)
    for other in others:
        if other.theirs in config and other.read(config) != value:
            must = f"equal to `{field.theirs}` ({value!r})"
            raise unsupported(other.theirs, must, config[other.theirs])
    return value


MARIAN = TransformerLayout(
    Transformer,
    "marian",
    "Marian",
    "MarianMTModel",
    _names(),
    FIELDS | _tokens(vocab_size=58101, pad=58100, bos=58100, eos=0),
)
PEGASUS = TransformerLayout(
    PreNormTransformer,
    "pegasus",
    "Pegasus",
    "PegasusForConditionalGeneration",
    _names(
        *_writes("encoder_norm", "model.encoder.layer_norm"),
        *_writes("decoder_norm", "model.decoder.layer_norm"),
    ),
    FIELDS | _tokens(vocab_size=50265, pad=0, bos=0, eos=1),
)
