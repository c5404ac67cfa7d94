"""The published layouts of GPT, GPT-2, GPT-Neo and Llama: names, configuration, heads.

A language model is the model itself; under other heads it is `EncoderWithHeads`. GPT-2's published
files have no prefix before their names although they hold language models, so that the architecture
decides and not the names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import eq
from typing import Any, ClassVar

from torch import nn

from regard.checkpoints.filling import Weights
from regard.checkpoints.formats.config_table import (
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
from regard.checkpoints.formats.encoder_layout import (
    TOKEN_HEADS,
    EncoderLayout,
    HeadLayout,
    Rows,
    affine,
    block_rows,
    packed,
)
from regard.checkpoints.names import NameRow, Names, split, transpose
from regard.models.config import MOST_LAYERS, AttentionKind, Epsilon, InitScale, Size
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.gpt2 import GPT, GPT2
from regard.models.gpt3 import GPTNeo
from regard.models.llama import Factor, Llama
from regard.schema import check_same

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

    HEAD: ClassVar[str] = "lm_head"  # their name of the output over tokens
    ROLES: ClassVar[tuple[str, ...]] = ("bos", "eos")  # those with default ids
    CAUSAL = ()
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
        return super().architectures | {("masked_lm",): self.language_model}

    def read(self, config: ConfigJson, tensors: Weights) -> nn.Module:
        model: Any = super().read(config, tensors)
        name = self._named_architecture(config)
        alone = name == self.language_model or not (name or model.heads)
        return model.encoder if alone else model

    def kinds(self, config: ConfigJson, tensors: Weights) -> tuple[str, ...]:
        name = self._named_architecture(config)
        if name == self.double_heads or CHOICE.sign in tensors:
            for field, values in SUMMARY.items():
                if config.get(field, values[0]) not in values:
                    raise unsupported(field, repr(values[0]), config[field])
        return () if name == self.language_model else super().kinds(config, tensors)

    def names(self, kinds: Sequence[str], config: Any) -> Names:
        table = super().names(kinds, config)
        self.add_output(table, config)
        return table

    def add_output(self, table: Names, config: Any) -> None:
        """Add the names of the output over tokens to a table."""
        if config.output == "tied":
            table.tied["encoder.head.weight"] = "encoder.embedding.weight"
            table.duplicates[f"{self.HEAD}.weight"] = self.prefix + self.body[0][1]
        elif config.output == "own":
            table.rows.append(NameRow.of("encoder.head.weight", f"{self.HEAD}.weight"))

    def with_architecture(self, model: Any, name: str, tensors: Weights) -> Any:
        if name == self.language_model:
            return model.encoder if isinstance(model, EncoderWithHeads) else model
        return super().with_architecture(model, name, tensors)

    def _name_of(self, model: object) -> str | None:
        return (
            self._architecture(model.heads)
            if isinstance(model, EncoderWithHeads)
            else self.language_model
        )

    def _required_heads(self, architecture: str) -> tuple[str, ...]:
        return () if architecture == self.language_model else super()._required_heads(architecture)

    def _adjusted(self, ours: Any, config: ConfigJson, tensors: Weights) -> Any:
        # Their defaults are ids of the released vocabulary; a smaller one has no such token.
        beyond = [role for role in self.ROLES if (getattr(ours, role) or 0) >= ours.vocab_size]
        ours = replace(ours, **dict.fromkeys(beyond))
        if self._named_architecture(config) in (self.language_model, self.double_heads):
            return ours
        return ours if self._has_output(ours, tensors) else replace(ours, output="none")

    def _has_output(self, ours: Any, tensors: Weights) -> bool:
        """Whether a file has what an output over tokens needs beside the embedding."""
        return ours.output != "own" or f"{self.HEAD}.weight" in tensors


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
    **of_kind(Size, d_model=("n_embd", 768), heads=("n_head", 12), layers=("n_layer", 12)),
    "dropout": dropout("resid_pdrop", 0.1),
    "embedding_dropout": dropout("embd_pdrop", 0.1),
    "attention_dropout": dropout("attn_pdrop", 0.1),
    "choice_dropout": dropout("summary_first_dropout", 0.1),
    "choice_activation": activation("summary_activation", None),
    "norm_eps": Field("layer_norm_epsilon", 1e-5, Epsilon),
    "init_range": Field("initializer_range", 0.02, InitScale),
    "output": output(True),
}
LEARNED = {"positions": "learned"}
SILENT = [*SUMMARY, "n_ctx"]
ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}

GPT_ACTIVATIONS = {"gelu": "gelu-tanh", "relu": "relu", "silu": "swish", "swish": "swish"}
GPT_LAYOUT = GPTLayout(
    model=GPT,
    family="OpenAIGPT",
    model_type="openai-gpt",
    config=ConfigTable(
        FIELDS
        | of_kind(Size, vocab_size=("vocab_size", 40478), max_length=("n_positions", 512))
        | special_tokens(pad=None, bos=None, eos=None)
        # Their "gelu" is the approximation here, as in the paper's program, and in GPT-2 it is not.
        | {"activation": Field("afn", "gelu", names=GPT_ACTIVATIONS)},
        silent=[*SILENT, "n_special", "predict_special_tokens"],
        aliases=ALIASES,
        only=LEARNED,
    ),
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

GPT2_LAYOUT = GPTLayout(
    model=GPT2,
    family="GPT2",
    model_type="gpt2",
    config=ConfigTable(
        FIELDS
        | of_kind(Size, vocab_size=("vocab_size", 50257), max_length=("n_positions", 1024))
        | of_kind(
            bool,
            scaled=("scale_attn_weights", True),
            scaled_by_layer=("scale_attn_by_inverse_layer_idx", False),
        )
        | special_tokens(pad=None, bos=50256, eos=50256)
        | {
            "d_ff": Field("n_inner", None, Size | None),
            "activation": activation("activation_function", "gelu_new"),
            "head_dropout": dropout("classifier_dropout", None),
        },
        # The order of the factors and their type: ours is in float32 always, where it is the same.
        silent=[*SILENT, "reorder_and_upcast_attn"],
        aliases=ALIASES | {"hidden_dropout": "classifier_dropout"},
        only=LEARNED,
    ),
    prefix="transformer.",
    adapted=("c_attn",),
    ignored=IGNORED,
    body=[
        ("embedding.weight", "wte.weight"),
        ("positions.vectors.weight", "wpe.weight"),
        *BLOCKS,
        *affine("norm", "ln_f"),
    ],
    heads={"classes": CLASSES, "multiple_choice": CHOICE, **TOKEN_HEADS},
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

    def read(self, config: ConfigJson) -> tuple[AttentionKind, ...]:
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

    def write(self, config: Any) -> Values:
        """Their fields for our configuration."""
        kinds, layers = list(config.attention_kinds), config.layers
        every = [kinds[n % len(kinds)] for n in range(layers)]
        whole = layers % len(kinds) == 0
        types = [[kinds, layers // len(kinds)]] if whole else [[every, 1]]
        return super().write(config) | {TYPES: types, LAYERS: every}


ATTENTION = f"{LAYER}.attn.attention"
PROJECTIONS = tuple(f"{ATTENTION}.{name}_proj.weight" for name in "qkv")
GPT_NEO = CausalLMLayout(
    model=GPTNeo,
    family="GPTNeo",
    model_type="gpt_neo",
    config=GPTNeoFields(
        of_kind(
            Size,
            vocab_size=("vocab_size", 50257),
            d_model=("hidden_size", 2048),
            heads=("num_heads", 16),
            layers=("num_layers", 24),
            max_length=("max_position_embeddings", 2048),
            window=("window_size", 256),
        )
        | special_tokens(pad=None, bos=50256, eos=50256)
        | {name: FIELDS[name] for name in ("norm_eps", "init_range", "output")}
        | {
            "d_ff": Field("intermediate_size", None, Size | None),
            "attention_kinds": AttentionTypes(),
            "activation": activation("activation_function", "gelu_new"),
            "dropout": dropout("resid_dropout", 0.0),
            "embedding_dropout": dropout("embed_dropout", 0.0),
            "attention_dropout": dropout("attention_dropout", 0.0),
            "head_dropout": dropout("classifier_dropout", 0.1),
        },
        # Older releases write what a head for multiple choice would be, and there is none.
        silent=[LAYERS, *SUMMARY, "summary_activation", "summary_first_dropout"],
        aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
        only=LEARNED,
    ),
    prefix="transformer.",
    adapted=("q_proj", "v_proj"),
    ignored=[f"{ATTENTION}.bias", f"{ATTENTION}.masked_bias"],
    body=[
        ("embedding.weight", "wte.weight"),
        ("positions.vectors.weight", "wpe.weight"),
        (f"{OURS}.attention.query_key_value.weight", PROJECTIONS, split(3).reversed()),
        *block_rows(LAYER, "attn.attention.out_proj", "ln_1", "mlp.c_fc", "mlp.c_proj", "ln_2"),
        *affine("norm", "ln_f"),
    ],
    heads={"classes": CLASSES, **TOKEN_HEADS},
)

# ----------------------------------------------------------------------------------- Llama

PARTIAL = "partial_rotary_factor"  # in the table or, in older files, beside it
ORIGINAL = "original_max_position_embeddings"  # likewise; that beside the table takes precedence
ROTARY = ("rope_parameters", "rope_scaling", "rope_theta", "rope_interleaved", PARTIAL, ORIGINAL)
# `rope_type` of theirs -> ours
SCALINGS = {"default": "none", "linear": "linear", "llama3": "llama3"}
# ours -> their field inside `rope_parameters`, by `rope_type`
SCALING_FIELDS = {
    "none": {},
    "linear": of_kind(Factor, rope_factor=("factor", None)),
    "llama3": of_kind(
        Factor,
        rope_factor=("factor", None),
        rope_low_factor=("low_freq_factor", None),
        rope_high_factor=("high_freq_factor", None),
    )
    | of_kind(Size, rope_original_length=(ORIGINAL, None)),
}


@dataclass(frozen=True)
class LlamaFields(ConfigTable):
    """The fields of rotary positions are a table inside config.json.

    Releases of `transformers` before 5 have `rope_theta` beside it and call it `rope_scaling`.
    """

    def read(self, config: ConfigJson) -> Values:
        """The options of our configuration."""
        return super().read(config) | _read_rotary(config)

    def write(self, config: Any) -> Values:
        """Their fields for our configuration, for both generations of releases."""
        kind = next(theirs for theirs, ours in SCALINGS.items() if ours == config.rope_scaling)
        fields = SCALING_FIELDS[config.rope_scaling]
        scaling = {field.theirs: getattr(config, ours) for ours, field in fields.items()}
        table = {"rope_type": kind, "rope_theta": config.rope_theta, **scaling}
        old = {"rope_type": kind, **scaling} if scaling else None
        rotary = {"rope_parameters": table, "rope_theta": config.rope_theta, "rope_scaling": old}
        heads = {"num_key_value_heads": config.shared_heads}
        return super().write(config) | heads | rotary


def _read_rotary(config: ConfigJson) -> Values:
    """The options of rotary positions.

    Raises:
        ConfigError: they are computed in a way that our model does not have.
    """
    if config.get("rope_interleaved"):
        raise unsupported("rope_interleaved", "false", config["rope_interleaved"])
    old, new = "rope_scaling", "rope_parameters"
    scaling, other = (
        Field(name, None, dict[str, Any] | None).read(config) or {} for name in (old, new)
    )
    table = scaling or other
    for name in other:
        check_same("config.json", f"{old}.{name}", table.get(name), f"`{new}`", other[name])
    for name, fields in (("rope_theta", config), ("type", table)):
        inside = "rope_type" if name == "type" else name
        check_same("config.json", name, fields.get(name), f"`{new}.{inside}`", table.get(inside))
    theta = table.get("rope_theta", config.get("rope_theta", 10_000.0))
    kind = Field("rope_type", table.get("type", "default"), names=SCALINGS).read(table)
    for fields in (config, table):
        if fields.get(PARTIAL) not in (None, 1, 1.0):
            raise unsupported(PARTIAL, "1", fields[PARTIAL])
    fields = {ORIGINAL: config.get("max_position_embeddings", 2048)} | dict(table)
    if config.get(ORIGINAL) is not None:
        fields[ORIGINAL] = config[ORIGINAL]
    ours = {name: field.read(fields) for name, field in SCALING_FIELDS[kind].items()}
    theta = Field("rope_theta", None, Factor).read({"rope_theta": theta})
    return {"rope_theta": theta, "rope_scaling": kind, **ours}


@dataclass(frozen=True)
class LlamaLayout(CausalLMLayout):
    """How Llama is published: biases only where the configuration says so."""

    def body_of(self, config: Any) -> Rows:
        parts = (("attention", config.attention_bias), ("feed", config.feed_bias))
        skipped = [f".{name}." for name, has_bias in parts if not has_bias]
        return [
            row
            for row in self.body
            if not (row[0].endswith(".bias") and any(part in row[0] for part in skipped))
        ]

    def names(self, kinds: Sequence[str], config: Any) -> Names:
        # under the head for answers the prefix is that of GPT
        layout = replace(self, prefix="transformer.") if "span" in kinds else self
        return super(LlamaLayout, layout).names(kinds, config)


LLAMA_LAYER = "layers.{layer}"
LLAMA = LlamaLayout(
    model=Llama,
    family="Llama",
    model_type="llama",
    config=LlamaFields(
        of_kind(
            Size,
            vocab_size=("vocab_size", 32000),
            d_model=("hidden_size", 4096),
            d_ff=("intermediate_size", 11008),
            heads=("num_attention_heads", 32),
            layers=("num_hidden_layers", 32),
            max_length=("max_position_embeddings", 2048),
        )
        | of_kind(
            Size | None, key_value_heads=("num_key_value_heads", None), head_dim=("head_dim", None)
        )
        | of_kind(bool, attention_bias=("attention_bias", False), feed_bias=("mlp_bias", False))
        | special_tokens(pad=None, bos=1, eos=2)
        | {
            "activation": activation("hidden_act", "silu"),
            "attention_dropout": dropout("attention_dropout", 0.0),
            "head_dropout": dropout("classifier_dropout", 0.1),
            "norm_eps": Field("rms_norm_eps", 1e-6, Epsilon),
            "init_range": FIELDS["init_range"],
            "output": output(False),
        },
        # How their program splits its products, and a note in the files of SmolLM2.
        silent=[*ROTARY, "pretraining_tp", "is_llama_config"],
    ),
    prefix="model.",
    adapted=("q_proj", "v_proj"),
    ignored=[f"{LLAMA_LAYER}.self_attn.rotary_emb.inv_freq"],
    body=[
        ("embedding.weight", "embed_tokens.weight"),
        (f"{OURS}.attention_norm.weight", f"{LLAMA_LAYER}.input_layernorm.weight"),
        *affine(f"{OURS}.attention.query", f"{LLAMA_LAYER}.self_attn.q_proj"),
        *packed(f"{OURS}.attention.key_value", [f"{LLAMA_LAYER}.self_attn.{x}_proj" for x in "kv"]),
        *affine(f"{OURS}.attention.output", f"{LLAMA_LAYER}.self_attn.o_proj"),
        (f"{OURS}.feed_norm.weight", f"{LLAMA_LAYER}.post_attention_layernorm.weight"),
        *packed(f"{OURS}.feed.inner", [f"{LLAMA_LAYER}.mlp.{x}_proj" for x in ("gate", "up")]),
        *affine(f"{OURS}.feed.outer", f"{LLAMA_LAYER}.mlp.down_proj"),
        ("norm.weight", "norm.weight"),
    ],
    heads={
        "classes": CLASSES,
        "tags": HeadLayout(affine("output", "score")),
        "span": TOKEN_HEADS["span"],
    },
)
