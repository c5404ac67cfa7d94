"""The Transformer's published layouts: Marian's is post-norm, Pegasus' is pre-norm.

Both put all sines of a position before all cosines; the paper and we put the sine and the cosine of
one frequency side by side. So whatever has the model's width is reordered along it: embeddings,
what reads hidden states, what writes them, and norms. The heads inside are as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.checkpoints.formats.config_table import REQUIRED, Field, dropped, refusal
from regard.checkpoints.formats.published import WholeModel
from regard.checkpoints.names import Names
from regard.checkpoints.transforms import Transform, split
from regard.errors import ConfigError
from regard.models.check_config import check_consistent
from regard.models.config import Probability, Size, TokenId
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.transformer_prenorm import PreNormTransformer

# ---- weights -----------------------------------------------------------------------------------


def interleave(dim: int = 0) -> Transform:
    """Their order (s1 s2 … c1 c2 …) along `dim` becomes ours (s1 c1 s2 c2 …)."""

    def reordered(tensor: Tensor, sizes: tuple[int, int]) -> Tensor:
        return tensor.unflatten(dim, sizes).transpose(dim, dim + 1).flatten(dim, dim + 1)

    return Transform(
        read=lambda tensors: [reordered(t, (2, -1)) for t in tensors],
        write=lambda tensors: [reordered(t, (-1, 2)) for t in tensors],
    )


READS, WRITES = interleave(1), interleave(0)  # the columns and the rows of a matrix (out, in)


def _attention(ours: str, theirs: str, joined: str) -> list[tuple]:
    """Rows of one attention; `joined` are the letters of what `ours` holds in one matrix."""
    weights = tuple(f"{theirs}.{letter}_proj.weight" for letter in joined)
    biases = tuple(f"{theirs}.{letter}_proj.bias" for letter in joined)
    side_by_side = split(len(joined)).reversed()
    return [
        (f"{ours}.weight", weights, side_by_side.then(READS)),
        (f"{ours}.bias", biases, side_by_side),
    ]


def _written(ours: str, theirs: str) -> list[tuple]:
    """A layer that writes hidden states, or a norm of them."""
    return [(f"{ours}.{kind}", f"{theirs}.{kind}", WRITES) for kind in ("weight", "bias")]


def _block(ours: str, theirs: str) -> list[tuple]:
    return [
        *_attention(f"{ours}.attention.query_key_value", f"{theirs}.self_attn", "qkv"),
        *_written(f"{ours}.attention.output", f"{theirs}.self_attn.out_proj"),
        *_written(f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm"),
        (f"{ours}.feed.inner.weight", f"{theirs}.fc1.weight", READS),
        (f"{ours}.feed.inner.bias", f"{theirs}.fc1.bias"),
        *_written(f"{ours}.feed.outer", f"{theirs}.fc2"),
        *_written(f"{ours}.feed_norm", f"{theirs}.final_layer_norm"),
    ]


def _cross(ours: str, theirs: str) -> list[tuple]:
    return [
        *_attention(f"{ours}.cross.query", f"{theirs}.encoder_attn", "q"),
        *_attention(f"{ours}.cross.key_value", f"{theirs}.encoder_attn", "kv"),
        *_written(f"{ours}.cross.output", f"{theirs}.encoder_attn.out_proj"),
        *_written(f"{ours}.cross_norm", f"{theirs}.encoder_attn_layer_norm"),
    ]


def _names(*further: tuple) -> Names:
    encoder, decoder = "model.encoder.layers.{layer}", "model.decoder.layers.{layer}"
    shared = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    return Names(
        [
            ("embedding.weight", "model.shared.weight", interleave(1)),
            *_block("encoder.{layer}", encoder),
            *_block("decoder.{layer}", decoder),
            *_cross("decoder.{layer}", decoder),
            *further,
        ],
        tied={"head.weight": "embedding.weight"},
        duplicates=dict.fromkeys((*shared, "lm_head.weight"), "model.shared.weight"),
        ignored=["model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"],
        zero=["final_logits_bias"],
    )


# ---- config.json -------------------------------------------------------------------------------

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
    "attention_dropout": (dropped("attention_dropout", 0.0),),
    "activation_dropout": (dropped("activation_dropout", 0.0),),
    "activation": (Field("activation_function", REQUIRED, names=ACTIVATIONS),),
    "max_length": (_size("max_position_embeddings"),),
    "pad": (Field("pad_token_id", REQUIRED, TokenId),),
    "bos": (Field("decoder_start_token_id", REQUIRED, TokenId),),
    "eos": (Field("eos_token_id", REQUIRED, TokenId),),
}
THEIRS = {ours: fields[0].theirs for ours, fields in FIELDS.items()}

# What our model does and no option changes: their name -> (value, what its absence means).
# `encoder_layerdrop` is not here: it is noise of their training and changes no prediction.
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


def _to_config(config: TransformerConfig, model_type: str, architecture: str) -> dict[str, Any]:
    table = {one.theirs: getattr(config, ours) for ours, both in FIELDS.items() for one in both}
    return {
        "model_type": model_type,
        "architectures": [architecture],
        **table,
        **{name: value for name, (value, _) in FIXED.items()},
        "bos_token_id": config.bos,
        "forced_eos_token_id": None,
    }


def _from_config(config: Mapping[str, Any], prenorm: bool) -> TransformerConfig:
    order = {"normalize_before": (prenorm, prenorm), "add_final_layer_norm": (prenorm, prenorm)}
    for name, (value, absent) in {**FIXED, **FIXED_IN_OLD_FILES, **order}.items():
        _must_be(config, name, (value,), absent)
    _must_be(config, "decoder_vocab_size", (None, config.get("vocab_size")), None)
    found = TransformerConfig(**{ours: _same(config, *names) for ours, names in FIELDS.items()})
    check_consistent(found, "config.json", ConfigError, THEIRS)
    return found


def _same(config: Mapping[str, Any], field: Field, *others: Field) -> Any:
    """What a field says, and others of theirs in the same words where they are there."""
    value = field.read(config)
    for other in others:
        if other.theirs in config and other.read(config) != value:
            must = f"equal to `{field.theirs}` ({value!r})"
            raise refusal(other.theirs, must, config[other.theirs])
    return value


def _must_be(config: Mapping[str, Any], name: str, values: tuple[Any, ...], absent: Any) -> None:
    value = config.get(name, absent)
    if value not in values:
        wanted = " or ".join(repr(value) for value in values if value is not None)
        raise refusal(name, wanted, value)


MARIAN = WholeModel(
    Transformer,
    to_config=lambda config: _to_config(config, "marian", "MarianMTModel"),
    from_config=lambda config: _from_config(config, prenorm=False),
    names=_names(),
    theirs=THEIRS,
)
PEGASUS = WholeModel(
    PreNormTransformer,
    to_config=lambda config: _to_config(config, "pegasus", "PegasusForConditionalGeneration"),
    from_config=lambda config: _from_config(config, prenorm=True),
    names=_names(
        *_written("encoder_norm", "model.encoder.layer_norm"),
        *_written("decoder_norm", "model.decoder.layer_norm"),
    ),
    theirs=THEIRS,
)
