"""The published layouts of GPT, GPT-2 and GPT-Neo: names, configuration, heads.

A language model is the model itself; under other heads it is `EncoderWithHeads`. GPT-2's published
files have no prefix before their names although they hold language models, so that the architecture
decides and not the names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import eq
from typing import Any, cast

from torch import Tensor, nn

from regard.checkpoints.formats.config_table import (
    GENERATION,
    ConfigTable,
    Field,
    TokenField,
    activation,
    dropout,
    output,
    unsupported,
)
from regard.checkpoints.formats.encoder_layout import (
    TOKEN_HEADS,
    EncoderLayout,
    HeadLayout,
    affine,
)
from regard.checkpoints.names import NameRow, Names, split, transpose
from regard.models.config import MOST_LAYERS, AttentionKind, Epsilon, InitScale, Size, TokenId
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.gpt2 import GPT, GPT2
from regard.models.gpt3 import GPTNeo
from regard.models.protocols import Encoder

LM_HEAD = "lm_head.weight"
# theirs -> the values that our head for multiple choice computes
SUMMARY: dict[str, tuple[Any, ...]] = {
    "summary_type": ("cls_index",),
    "summary_use_proj": (True,),
    "summary_proj_to_labels": (True,),
    "summary_last_dropout": (0, None),
}


@dataclass(frozen=True)
class GPTLayout(EncoderLayout):
    """How GPT's family is published."""

    ENDINGS = {
        (): "Model",
        ("multiple_choice",): "DoubleHeadsModel",
        ("classes",): "ForSequenceClassification",
        ("tags",): "ForTokenClassification",
        ("span",): "ForQuestionAnswering",
    }

    @property
    def language_model(self) -> str:
        """Their name for the model alone, whose output predicts tokens."""
        return f"{self.family}LMHeadModel"

    @property
    def double_heads(self) -> str:
        """Their name for the one with this output and a head for multiple choice."""
        return f"{self.family}DoubleHeadsModel"

    @property
    def architectures(self) -> dict[tuple[str, ...], str]:
        """See `EncoderLayout`; a language model is none under a head."""
        return super().architectures | {("masked_lm",): self.language_model}

    def read(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
        """See `Layout`; a language model is not under heads."""
        model: Any = super().read(config, tensors)
        name = self._named_architecture(config)
        alone = name == self.language_model or not (name or model.heads)
        return model.encoder if alone else model

    def kinds(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
        name = self._named_architecture(config)
        if name == self.double_heads or CHOICE.sign in tensors:
            for field, values in SUMMARY.items():
                if config.get(field, values[0]) not in values:
                    raise unsupported(field, repr(values[0]), config[field])
        return () if name == self.language_model else super().kinds(config, tensors)

    def names(self, kinds: Sequence[str], config: Any) -> Names:
        """The table of a model with these heads, and of its output over tokens."""
        table = super().names(kinds, config)
        self.add_output(table, config)
        return table

    def add_output(self, table: Names, config: Any) -> None:
        """Add the names of the output over tokens to a table."""
        if config.output == "tied":
            table.tied["encoder.head.weight"] = "encoder.embedding.weight"
            table.duplicates[LM_HEAD] = self.prefix + self.body[0][1]
        elif config.output == "own":
            table.rows.append(NameRow.of("encoder.head.weight", LM_HEAD))

    def with_architecture(
        self, model: nn.Module, name: str, tensors: Mapping[str, Tensor]
    ) -> EncoderWithHeads | Encoder:
        """See `Layout`; a language model is not under heads."""
        if name == self.language_model:
            return model.encoder if isinstance(model, EncoderWithHeads) else cast(Encoder, model)
        return super().with_architecture(model, name, tensors)

    def _name_of(self, model: object) -> str | None:
        return (
            self._architecture(model.heads)
            if isinstance(model, EncoderWithHeads)
            else self.language_model
        )

    def _required_heads(self, architecture: str) -> tuple[str, ...]:
        return () if architecture == self.language_model else super()._required_heads(architecture)

    def _adjusted(self, ours: Any, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
        # Their defaults are ids of the released vocabulary; a smaller one has no such token.
        beyond = [role for role in ("bos", "eos") if (getattr(ours, role) or 0) >= ours.vocab_size]
        ours = replace(ours, **dict.fromkeys(beyond))
        with_output = self._named_architecture(config) in (self.language_model, self.double_heads)
        if ours.output == "own" and not with_output and LM_HEAD not in tensors:
            return replace(ours, output="none")
        return ours


@dataclass(frozen=True)
class CausalLMLayout(GPTLayout):
    """How decoders are published since: as GPT, under other names of the architectures."""

    ENDINGS = {k: v for k, v in GPTLayout.ENDINGS.items() if k != ("multiple_choice",)}

    @property
    def language_model(self) -> str:
        return f"{self.family}ForCausalLM"


LAYER, OURS = "h.{layer}", "blocks.{layer}"
BLOCKS = [
    *affine(f"{OURS}.attention.query_key_value", f"{LAYER}.attn.c_attn", transpose),
    *affine(f"{OURS}.attention.output", f"{LAYER}.attn.c_proj", transpose),
    *affine(f"{OURS}.attention_norm", f"{LAYER}.ln_1"),
    *affine(f"{OURS}.feed.inner", f"{LAYER}.mlp.c_fc", transpose),
    *affine(f"{OURS}.feed.outer", f"{LAYER}.mlp.c_proj", transpose),
    *affine(f"{OURS}.feed_norm", f"{LAYER}.ln_2"),
]
IGNORED = ["position_ids", f"{LAYER}.attn.bias", f"{LAYER}.attn.masked_bias"]
CLASSES = HeadLayout([("output.weight", "score.weight")])
CHOICE = HeadLayout(affine("output", "multiple_choice_head.summary"))

FIELDS = {
    "d_model": Field("n_embd", 768, Size),
    "heads": Field("n_head", 12, Size),
    "layers": Field("n_layer", 12, Size),
    "dropout": dropout("resid_pdrop", 0.1),
    "embedding_dropout": dropout("embd_pdrop", 0.1),
    "attention_dropout": dropout("attn_pdrop", 0.1),
    "choice_dropout": dropout("summary_first_dropout", 0.1),
    "choice_activation": activation("summary_activation", None),
    "norm_eps": Field("layer_norm_epsilon", 1e-5, Epsilon),
    "init_range": Field("initializer_range", 0.02, InitScale),
    "output": output(True),
    "pad": TokenField("pad_token_id", None, TokenId | None),
}
LEARNED = {"positions": "learned"}
SILENT = [*SUMMARY, *GENERATION, "n_ctx"]
ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}

GPT_ACTIVATIONS = {"gelu": "gelu-tanh", "relu": "relu", "silu": "swish", "swish": "swish"}
GPT_TABLE = ConfigTable(
    FIELDS
    | {
        "vocab_size": Field("vocab_size", 40478, Size),
        "max_length": Field("n_positions", 512, Size),
        # Their "gelu" is the approximation here, as in the paper's program, and in GPT-2 it is not.
        "activation": Field("afn", "gelu", names=GPT_ACTIVATIONS),
        "bos": TokenField("bos_token_id", None, TokenId | None),
        "eos": TokenField("eos_token_id", None, TokenId | None, several=True),
    },
    silent=[*SILENT, "n_special", "predict_special_tokens"],
    aliases=ALIASES,
    only=LEARNED,
)
GPT_LAYOUT = GPTLayout(
    model=GPT,
    family="OpenAIGPT",
    model_type="openai-gpt",
    config=GPT_TABLE,
    prefix="transformer.",
    adapted=("c_attn",),
    ignored=IGNORED,
    body=[
        ("embedding.weight", "tokens_embed.weight"),
        ("positions.vectors.weight", "positions_embed.weight"),
        *BLOCKS,
    ],
    heads={"classes": CLASSES, "multiple_choice": CHOICE},
)

GPT2_TABLE = ConfigTable(
    FIELDS
    | {
        "vocab_size": Field("vocab_size", 50257, Size),
        "d_ff": Field("n_inner", None, Size | None),
        "max_length": Field("n_positions", 1024, Size),
        "activation": activation("activation_function", "gelu_new"),
        "head_dropout": dropout("classifier_dropout", None),
        "scaled": Field("scale_attn_weights", True, bool),
        "scaled_by_layer": Field("scale_attn_by_inverse_layer_idx", False, bool),
        "bos": TokenField("bos_token_id", 50256, TokenId | None),
        "eos": TokenField("eos_token_id", 50256, TokenId | None, several=True),
    },
    # The order of the factors and their type: ours is in float32 always, where it is the same.
    silent=[*SILENT, "reorder_and_upcast_attn"],
    aliases=ALIASES | {"hidden_dropout": "classifier_dropout"},
    only=LEARNED,
)
GPT2_LAYOUT = GPTLayout(
    model=GPT2,
    family="GPT2",
    model_type="gpt2",
    config=GPT2_TABLE,
    prefix="transformer.",
    adapted=("c_attn",),
    ignored=IGNORED,
    body=[
        ("embedding.weight", "wte.weight"),
        ("positions.vectors.weight", "wpe.weight"),
        *BLOCKS,
        *affine("norm", "ln_f"),
    ],
    heads={
        "classes": CLASSES,
        "multiple_choice": CHOICE,
        **TOKEN_HEADS,
    },
)


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
        types = config.get(TYPES)
        kinds = _expanded(self.absent if types is None else types)
        if config.get(LAYERS) not in (None, kinds):
            raise unsupported(LAYERS, f"what `{TYPES}` says", config[LAYERS])
        layers = config.get("num_layers", 24)
        if len(kinds) != layers:
            raise unsupported(TYPES, f"those of {layers} layers (`num_layers`)", types)
        every = range(1, len(kinds) + 1)
        period = next(n for n in every if all(map(eq, kinds, kinds[n:])))
        return tuple(kinds[:period])


def _expanded(types: Any) -> list[AttentionKind]:
    """One kind a layer."""
    kinds_of_layers: list[AttentionKind] = []
    for entry in types if isinstance(types, list | tuple) else [types]:
        match entry:
            case [[*kinds], int(count)] if {*kinds} <= {"global", "local"} and count >= 0:
                kinds_of_layers += kinds * min(count, MOST_LAYERS)
            case _:
                raise unsupported(TYPES, MUST, types)
    return kinds_of_layers


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


ATTENTION = f"{LAYER}.attn.attention"
PROJECTIONS = tuple(f"{ATTENTION}.{name}_proj.weight" for name in ("q", "k", "v"))
NEO_BODY = [
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

NEO_TABLE = GPTNeoFields(
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
        "output": output(True),
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
    config=NEO_TABLE,
    prefix="transformer.",
    adapted=("q_proj", "v_proj"),
    ignored=[f"{ATTENTION}.bias", f"{ATTENTION}.masked_bias"],
    body=NEO_BODY,
    heads={
        "classes": HeadLayout([("output.weight", "score.weight")]),
        **TOKEN_HEADS,
    },
)
