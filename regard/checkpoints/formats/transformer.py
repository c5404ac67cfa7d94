"""The Transformer's published layouts: Marian's is post-norm, Pegasus' is pre-norm.

Both put all sines of a position before all cosines; the paper and we put the sine and the cosine of
one frequency side by side. So every tensor with a dimension of width `d_model` is reordered along
it: embeddings, the layers that read hidden states, those that write them, and norms. The dimensions
inside heads keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard.checkpoints.filling import assign
from regard.checkpoints.formats.config_table import REQUIRED, Field, dropout, unsupported
from regard.checkpoints.names import Names
from regard.checkpoints.transforms import interleave, split
from regard.errors import ConfigError
from regard.models.check_config import check_consistent, check_sizes
from regard.models.config import Probability, Size, TokenId
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.transformer_prenorm import PreNormTransformer

# ----------------------------------------------------------------------------------- weights

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
        ignored=["model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"],
        zero=["final_logits_bias"],
    )


# ----------------------------------------------------------------------------------- config.json

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}


def _size(theirs: str) -> Field:
    return Field(theirs, REQUIRED, Size)


# ours -> theirs; where they have two, both must be equal
FIELDS: dict[str, tuple[Field, ...]] = {
    "vocab_size": (_size("vocab_size"),),
    "d_model": (_size("d_model"),),
    "d_ff": (_size("encoder_ffn_dim"), _size("decoder_ffn_dim")),
    "heads": (_size("encoder_attention_heads"), _size("decoder_attention_heads")),
    "encoder_layers": (_size("encoder_layers"),),
    "decoder_layers": (_size("decoder_layers"),),
    "dropout": (Field("dropout", REQUIRED, Probability),),
    "attention_dropout": (dropout("attention_dropout", 0.0),),
    "activation_dropout": (dropout("activation_dropout", 0.0),),
    "activation": (Field("activation_function", REQUIRED, names=ACTIVATIONS),),
    "max_length": (_size("max_position_embeddings"),),
    "pad": (Field("pad_token_id", REQUIRED, TokenId),),
    "bos": (Field("decoder_start_token_id", REQUIRED, TokenId),),
    "eos": (Field("eos_token_id", REQUIRED, TokenId),),
}
THEIRS = {ours: fields[0].theirs for ours, fields in FIELDS.items()}

# What our model does and no option changes: their name -> (value, what its absence means).
# `encoder_layerdrop` is not here: it acts in their training alone and changes no prediction.
FIXED = {
    "scale_embedding": (True, False),
    "tie_word_embeddings": (True, True),
    "is_encoder_decoder": (True, True),
}
FIXED_IN_OLD_FILES = {
    "share_encoder_decoder_embeddings": (True, True),
    "static_position_embeddings": (True, True),
    "normalize_embedding": (False, False),
    "add_bias_logits": (False, False),
    "is_decoder": (False, False),
}


@dataclass(frozen=True)
class TransformerLayout:
    """How one of our two Transformers is published."""

    model: type[nn.Module]
    model_type: str
    architecture: str
    names: Names

    def holds(self, model: nn.Module) -> bool:
        """See `Layout`."""
        return type(model) is self.model

    def write(self, model: Transformer) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """See `Layout`."""
        return self.write_config(model.config), self.names.write(model.state_dict())

    def read(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
        """See `Layout`."""
        ours = self.read_config(config)
        check_sizes(ours, tensors, "config.json", ConfigError, THEIRS)
        model = self.model(ours)
        assign(model, self.names.read(tensors, model.state_dict()))
        return model

    def in_their_order(self, hidden: Tensor) -> Tensor:
        """See `Layout`."""
        return READS.write([hidden.flatten(0, -2)])[0].view(hidden.shape)

    def write_config(self, config: TransformerConfig) -> dict[str, Any]:
        """config.json for a configuration of ours."""
        table = {one.theirs: getattr(config, ours) for ours, both in FIELDS.items() for one in both}
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
        prenorm = self.model is PreNormTransformer
        order = dict.fromkeys(("normalize_before", "add_final_layer_norm"), (prenorm, prenorm))
        for name, (value, absent) in {**FIXED, **FIXED_IN_OLD_FILES, **order}.items():
            if config.get(name, absent) != value:
                raise unsupported(name, repr(value), config.get(name, absent))
        sizes = (None, config.get("vocab_size"))
        if config.get("decoder_vocab_size") not in sizes:
            raise unsupported("decoder_vocab_size", repr(sizes[1]), config["decoder_vocab_size"])
        found = TransformerConfig(**{ours: _same(config, *names) for ours, names in FIELDS.items()})
        check_consistent(found, "config.json", ConfigError, THEIRS)
        return found


def _same(config: Mapping[str, Any], field: Field, *others: Field) -> Any:
    """The value of a field, which further fields that are there must equal."""
    value = field.read(config)
    for other in others:
        if other.theirs in config and other.read(config) != value:
            must = f"equal to `{field.theirs}` ({value!r})"
            raise unsupported(other.theirs, must, config[other.theirs])
    return value


MARIAN = TransformerLayout(Transformer, "marian", "MarianMTModel", _names())
PEGASUS = TransformerLayout(
    PreNormTransformer,
    "pegasus",
    "PegasusForConditionalGeneration",
    _names(
        *_writes("encoder_norm", "model.encoder.layer_norm"),
        *_writes("decoder_norm", "model.decoder.layer_norm"),
    ),
)
