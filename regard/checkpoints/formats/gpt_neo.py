"""GPT-Neo's published layout: names, configuration, heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import eq
from typing import Any

from regard.checkpoints.formats.config_table import (
    GENERATION,
    ConfigTable,
    Field,
    TokenField,
    activation,
    dropout,
    unsupported,
)
from regard.checkpoints.formats.encoder_layout import HeadLayout, affine
from regard.checkpoints.formats.gpt import LEARNED, SUMMARY, CausalLMLayout
from regard.checkpoints.transforms import split
from regard.models.config import MOST_LAYERS, AttentionKind, Epsilon, InitScale, Size, TokenId
from regard.models.gpt3 import GPTNeo

TYPES, LAYERS = "attention_types", "attention_layers"
MUST = "a list of kinds of attention, each with a count, such as [[['global', 'local'], 12]]"


@dataclass(frozen=True)
class AttentionTypes(Field):
    """The kinds of attention of the layers: of all, as theirs, or the first ones of ours, which
    repeat.
    """

    theirs: str = TYPES
    absent: Any = field(default_factory=lambda: [[["global", "local"], 12]])

    def read(self, config: Mapping[str, Any]) -> tuple[AttentionKind, ...]:
        """See `Field`; files have a second field with one entry a layer.

        Raises:
            ConfigError: it is no such list, the two fields differ, or it has not one kind a layer.
        """
        given = config.get(TYPES)
        kinds = _expanded(self.absent if given is None else given)
        if config.get(LAYERS) not in (None, kinds):
            raise unsupported(LAYERS, f"what `{TYPES}` says", config[LAYERS])
        layers = config.get("num_layers", 24)
        if len(kinds) != layers:
            raise unsupported(TYPES, f"those of {layers} layers (`num_layers`)", given)
        every = range(1, len(kinds) + 1)
        period = next(n for n in every if all(map(eq, kinds, kinds[n:])))
        return tuple(kinds[:period])


def _expanded(types: Any) -> list[AttentionKind]:
    """One kind a layer."""
    found: list[AttentionKind] = []
    for entry in types if isinstance(types, list | tuple) else [types]:
        match entry:
            case [[*kinds], int(count)] if {*kinds} <= {"global", "local"} and count >= 0:
                found += kinds * min(count, MOST_LAYERS)
            case _:
                raise unsupported(TYPES, MUST, types)
    return found


@dataclass(frozen=True)
class GPTNeoFields(ConfigTable):
    """The kinds of attention are written with the number of layers, which they depend on."""

    def write(self, config: Any) -> dict[str, Any]:
        """Their fields for our configuration."""
        kinds, layers = list(config.attention_kinds), config.layers
        every = [kinds[n % len(kinds)] for n in range(layers)]
        whole = layers % len(kinds) == 0
        types = [[kinds, layers // len(kinds)]] if whole else [[every, 1]]
        return super().write(config) | {TYPES: types, LAYERS: every}


LAYER, OURS = "h.{layer}", "blocks.{layer}"
ATTENTION = f"{LAYER}.attn.attention"
PROJECTIONS = tuple(f"{ATTENTION}.{name}_proj.weight" for name in ("q", "k", "v"))
BODY = [
    ("embedding.weight", "wte.weight"),
    ("positions.vectors.weight", "wpe.weight"),
    (f"{OURS}.attention.query_key_value.weight", PROJECTIONS, split(3).reversed()),
    *affine(f"{OURS}.attention.output", f"{ATTENTION}.out_proj"),
    *affine(f"{OURS}.attention_norm", f"{LAYER}.ln_1"),
    *affine(f"{OURS}.feed.inner", f"{LAYER}.mlp.c_fc"),
    *affine(f"{OURS}.feed.outer", f"{LAYER}.mlp.c_proj"),
    *affine(f"{OURS}.feed_norm", f"{LAYER}.ln_2"),
    *affine("norm", "ln_f"),
]

TABLE = GPTNeoFields(
    {
        "vocab_size": Field("vocab_size", 50257, Size),
        "d_model": Field("hidden_size", 2048, Size),
        "d_ff": Field("intermediate_size", None, Size | None),
        "heads": Field("num_heads", 16, Size),
        "layers": Field("num_layers", 24, Size),
        "max_length": Field("max_position_embeddings", 2048, Size),
        "attention_kinds": AttentionTypes(),
        "window": Field("window_size", 256, Size),
        "activation": activation("activation_function", "gelu_new"),
        "dropout": dropout("resid_dropout", 0.0),
        "embedding_dropout": dropout("embed_dropout", 0.0),
        "attention_dropout": dropout("attention_dropout", 0.0),
        "head_dropout": dropout("classifier_dropout", 0.1),
        "norm_eps": Field("layer_norm_epsilon", 1e-5, Epsilon),
        "init_range": Field("initializer_range", 0.02, InitScale),
        "output": Field(
            "tie_word_embeddings", True, names={True: "tied", False: "own"}, back={"none": False}
        ),
        "pad": TokenField("pad_token_id", None, TokenId | None),
        "bos": TokenField("bos_token_id", 50256, TokenId | None),
        "eos": TokenField("eos_token_id", 50256, TokenId | None, several=True),
    },
    # Older releases write what a head for multiple choice would be, and there is none.
    silent=[*GENERATION, LAYERS, *SUMMARY, "summary_activation", "summary_first_dropout"],
    aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
    only=LEARNED,
)
GPT_NEO = CausalLMLayout(
    model=GPTNeo,
    family="GPTNeo",
    model_type="gpt_neo",
    config=TABLE,
    prefix="transformer.",
    adapted=("q_proj", "v_proj"),
    ignored=[f"{ATTENTION}.bias", f"{ATTENTION}.masked_bias"],
    body=BODY,
    heads={
        "classes": HeadLayout([("output.weight", "score.weight")]),
        "tags": HeadLayout(affine("output", "classifier")),
        "span": HeadLayout(affine("output", "qa_outputs")),
    },
)
