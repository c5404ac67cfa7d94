"""Llama's published layout: names, configuration, heads.

As GPT's family: a language model is the model itself; under other heads it is `EncoderWithHeads`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from regard.checkpoints.formats.encoder_layout import HeadLayout, Rows, affine, packed
from regard.checkpoints.formats.gpt import CausalLMLayout
from regard.checkpoints.names import Names
from regard.models.config import Epsilon, InitScale, Size, TokenId
from regard.models.llama import Factor, Llama
from regard.schema import check_same

PARTIAL = "partial_rotary_factor"  # in the table or, in older files, beside it
ORIGINAL = "original_max_position_embeddings"  # likewise; that beside the table takes precedence
ROTARY = ("rope_parameters", "rope_scaling", "rope_theta", "rope_interleaved", PARTIAL, ORIGINAL)
# `rope_type` of theirs -> ours
SCALINGS = {"default": "none", "linear": "linear", "llama3": "llama3"}
# ours -> their field inside `rope_parameters`, by `rope_type`
SCALING_FIELDS = {
    "none": {},
    "linear": {"rope_factor": Field("factor", None, Factor)},
    "llama3": {
        "rope_factor": Field("factor", None, Factor),
        "rope_low_factor": Field("low_freq_factor", None, Factor),
        "rope_high_factor": Field("high_freq_factor", None, Factor),
        "rope_original_length": Field(ORIGINAL, None, Size),
    },
}


@dataclass(frozen=True)
class LlamaFields(ConfigTable):
    """The fields of rotary positions are a table inside config.json.

    Releases of `transformers` before 5 have `rope_theta` beside it and call it `rope_scaling`.
    """

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The options of our configuration."""
        return super().read(config) | _read_rotary(config)

    def write(self, config: Any) -> dict[str, Any]:
        """Their fields for our configuration, for both generations of releases."""
        kind = next(theirs for theirs, ours in SCALINGS.items() if ours == config.rope_scaling)
        fields = SCALING_FIELDS[config.rope_scaling]
        scaling = {field.theirs: getattr(config, ours) for ours, field in fields.items()}
        table = {"rope_type": kind, "rope_theta": config.rope_theta, **scaling}
        old = {"rope_type": kind, **scaling} if scaling else None
        rotary = {"rope_parameters": table, "rope_theta": config.rope_theta, "rope_scaling": old}
        heads = {"num_key_value_heads": config.shared_heads}
        return super().write(config) | heads | rotary


def _read_rotary(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of rotary positions.

    Raises:
        ConfigError: they are computed in a way that our model does not have.
    """
    if config.get("rope_interleaved"):
        raise unsupported("rope_interleaved", "false", config["rope_interleaved"])
    table = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(table, Mapping):
        raise unsupported("rope_parameters", "a table", table)
    new = "rope_parameters"
    other = config[new] if isinstance(config.get(new), Mapping) else {}
    for name in other:
        check_same("config.json", f"rope_scaling.{name}", table.get(name), f"`{new}`", other[name])
    for name, fields in (("rope_theta", config), ("type", table)):
        inside = "rope_type" if name == "type" else name
        check_same("config.json", name, fields.get(name), f"`{new}.{inside}`", table.get(inside))
    theta = table.get("rope_theta", config.get("rope_theta", 10_000.0))
    kind = table.get("rope_type", table.get("type", "default"))
    if kind not in SCALINGS:
        raise unsupported("rope_type", f"one of {', '.join(SCALINGS)}", kind)
    for fields in (config, table):
        if fields.get(PARTIAL) not in (None, 1, 1.0):
            raise unsupported(PARTIAL, "1", fields[PARTIAL])
    fields = {ORIGINAL: config.get("max_position_embeddings", 2048)} | dict(table)
    if config.get(ORIGINAL) is not None:
        fields[ORIGINAL] = config[ORIGINAL]
    ours = {name: field.read(fields) for name, field in SCALING_FIELDS[SCALINGS[kind]].items()}
    theta = Field("rope_theta", None, Factor).read({"rope_theta": theta})
    return {"rope_theta": theta, "rope_scaling": SCALINGS[kind], **ours}


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
        """See `GPTLayout`; under the head for answers the prefix is that of GPT."""
        layout = replace(self, prefix="transformer.") if "span" in kinds else self
        return super(LlamaLayout, layout).names(kinds, config)


LAYER, OURS = "layers.{layer}", "blocks.{layer}"
BODY = [
    ("embedding.weight", "embed_tokens.weight"),
    (f"{OURS}.attention_norm.weight", f"{LAYER}.input_layernorm.weight"),
    *affine(f"{OURS}.attention.query", f"{LAYER}.self_attn.q_proj"),
    *packed(
        f"{OURS}.attention.key_value",
        (f"{LAYER}.self_attn.k_proj", f"{LAYER}.self_attn.v_proj"),
    ),
    *affine(f"{OURS}.attention.output", f"{LAYER}.self_attn.o_proj"),
    (f"{OURS}.feed_norm.weight", f"{LAYER}.post_attention_layernorm.weight"),
    *packed(f"{OURS}.feed.inner", (f"{LAYER}.mlp.gate_proj", f"{LAYER}.mlp.up_proj")),
    *affine(f"{OURS}.feed.outer", f"{LAYER}.mlp.down_proj"),
    ("norm.weight", "norm.weight"),
]

TABLE = LlamaFields(
    {
        "vocab_size": Field("vocab_size", 32000, Size),
        "d_model": Field("hidden_size", 4096, Size),
        "d_ff": Field("intermediate_size", 11008, Size),
        "heads": Field("num_attention_heads", 32, Size),
        "key_value_heads": Field("num_key_value_heads", None, Size | None),
        "head_dim": Field("head_dim", None, Size | None),
        "layers": Field("num_hidden_layers", 32, Size),
        "max_length": Field("max_position_embeddings", 2048, Size),
        "activation": activation("hidden_act", "silu"),
        "attention_bias": Field("attention_bias", False, bool),
        "feed_bias": Field("mlp_bias", False, bool),
        "attention_dropout": dropout("attention_dropout", 0.0),
        "head_dropout": dropout("classifier_dropout", 0.1),
        "norm_eps": Field("rms_norm_eps", 1e-6, Epsilon),
        "init_range": Field("initializer_range", 0.02, InitScale),
        "output": output(False),
        "pad": TokenField("pad_token_id", None, TokenId | None),
        "bos": TokenField("bos_token_id", 1, TokenId | None),
        "eos": TokenField("eos_token_id", 2, TokenId | None, several=True),
    },
    # How their program splits its products, and a note in the files of SmolLM2.
    silent=[*GENERATION, *ROTARY, "pretraining_tp", "is_llama_config"],
)
LLAMA = LlamaLayout(
    model=Llama,
    family="Llama",
    model_type="llama",
    config=TABLE,
    prefix="model.",
    adapted=("q_proj", "v_proj"),
    ignored=[f"{LAYER}.self_attn.rotary_emb.inv_freq"],
    body=BODY,
    heads={
        "classes": HeadLayout([("output.weight", "score.weight")]),
        "tags": HeadLayout(affine("output", "score")),
        "span": HeadLayout(affine("output", "qa_outputs")),
    },
)
