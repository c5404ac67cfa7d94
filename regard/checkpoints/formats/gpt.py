"""The published layouts of GPT and GPT-2: names, configuration, heads.

A language model is the model itself; under other heads it is `Headed`. GPT-2's published files have
no prefix before their names although they hold language models, so that the architecture decides
and not the names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from regard.checkpoints.filling import assign
from regard.checkpoints.formats.config_table import ConfigTable, Field, activation, dropped, refusal
from regard.checkpoints.formats.encoders import EncoderLayout, HeadLayout, both
from regard.checkpoints.names import Names
from regard.checkpoints.transforms import transpose
from regard.models.config import Epsilon, InitScale, Size, TokenId
from regard.models.gpt import GPT
from regard.models.gpt2 import GPT2
from regard.models.headed import Headed

WORDS = "lm_head.weight"
# theirs -> the value that the head which compares answers computes
SUMMARY: dict[str, tuple[Any, ...]] = {
    "summary_type": ("cls_index",),
    "summary_use_proj": (True,),
    "summary_proj_to_labels": (True,),
    "summary_last_dropout": (0, None),
}


@dataclass(frozen=True)
class GPTLayout(EncoderLayout):
    """How GPT's family is published. `speaker` and `double` have an output over words."""

    speaker: str = ""
    double: str = ""

    def holds(self, model: Any) -> bool:
        """Whether a model of ours is written this way."""
        encoder = model.encoder if isinstance(model, Headed) else model
        if type(encoder) is not self.encoder:
            return False
        fields = [(one.back, getattr(encoder.config, ours)) for ours, one in self._fields()]
        spelled = all(back is None or value is None or value in back for back, value in fields)
        return spelled and self._name_of(model) is not None

    def write(self, model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """config.json and the tensors of a model."""
        name = self._name_of(model)
        model = model if isinstance(model, Headed) else Headed(model, {})
        config = {"model_type": self.model_type, "architectures": [name]}
        config |= self.config.write(model.config)
        config |= self.labels(model.heads)
        tensors = self.names(tuple(model.heads), model.config).write(model.state_dict())
        if name == self.architectures[()]:
            tensors = {name.removeprefix(self.prefix): t for name, t in tensors.items()}
        return config, tensors

    def read(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
        """The model that a folder holds."""
        ours, named = self._configuration(config), self._with_prefix(tensors)
        self._check_sizes(ours, named)
        name = self._named(config)
        if ours.output == "own" and name not in (self.speaker, self.double) and WORDS not in named:
            ours = replace(ours, output="none")
        if name == self.double or CHOICE.sign in named:
            _check_summary(config)
        kinds = () if name == self.speaker else self.kinds(config, named)
        body = self.encoder(ours)
        model = Headed(body, {kind: self._head(body, kind, config, named) for kind in kinds})
        assign(model, self.names(kinds, ours).read(named, model.state_dict()))
        return body if name == self.speaker or not name and not kinds else model

    def names(self, kinds: Sequence[str], config: Any) -> Names:
        """The table of a model with these heads, and its output over words."""
        table = super().names(kinds, config)
        if config.output == "tied":
            table.tied["encoder.head.weight"] = "encoder.embedding.weight"
            table.duplicates[WORDS] = self.prefix + self.body[0][1]
        elif config.output == "own":
            table.rows += Names([("encoder.head.weight", WORDS)]).rows
        return table

    def _fields(self) -> Any:
        return self.config.fields.items()

    def _name_of(self, model: Any) -> str | None:
        return self._architecture(model.heads) if isinstance(model, Headed) else self.speaker

    def _wanted(self, architecture: str) -> tuple[str, ...]:
        return () if architecture == self.speaker else super()._wanted(architecture)

    def _configuration(self, config: Mapping[str, Any]) -> Any:
        # Their defaults are ids of the released vocabulary; a smaller one has no such piece.
        ours = self.encoder.Config(**self.config.read(config))
        beyond = [role for role in ("bos", "eos") if (getattr(ours, role) or 0) >= ours.vocab_size]
        return self._checked(replace(ours, **dict.fromkeys(beyond)))


def _check_summary(config: Mapping[str, Any]) -> None:
    for name, values in SUMMARY.items():
        if config.get(name, values[0]) not in values:
            raise refusal(name, repr(values[0]), config[name])


def _layout(encoder: Any, family: str, model_type: str, table: ConfigTable, **parts: Any) -> Any:
    return GPTLayout(
        encoder=encoder,
        model_type=model_type,
        config=table,
        prefix="transformer.",
        ignored=["position_ids", f"{LAYER}.attn.bias", f"{LAYER}.attn.masked_bias"],
        speaker=f"{family}LMHeadModel",
        double=f"{family}DoubleHeadsModel",
        **parts,
    )


LAYER, OURS = "h.{layer}", "blocks.{layer}"
BLOCKS = [
    *both(f"{OURS}.attention.query_key_value", f"{LAYER}.attn.c_attn", transpose),
    *both(f"{OURS}.attention.output", f"{LAYER}.attn.c_proj", transpose),
    *both(f"{OURS}.attention_norm", f"{LAYER}.ln_1"),
    *both(f"{OURS}.feed.inner", f"{LAYER}.mlp.c_fc", transpose),
    *both(f"{OURS}.feed.outer", f"{LAYER}.mlp.c_proj", transpose),
    *both(f"{OURS}.feed_norm", f"{LAYER}.ln_2"),
]
CLASSES = HeadLayout(
    [("output.weight", "score.weight")], sign="score.weight", outputs="score.weight"
)
CHOICE = HeadLayout(
    both("output", "multiple_choice_head.summary"), sign="multiple_choice_head.summary.weight"
)

FIELDS = {
    "d_model": Field("n_embd", 768, Size),
    "heads": Field("n_head", 12, Size),
    "layers": Field("n_layer", 12, Size),
    "dropout": dropped("resid_pdrop", 0.1),
    "embedding_dropout": dropped("embd_pdrop", 0.1),
    "attention_dropout": dropped("attn_pdrop", 0.1),
    "choice_dropout": dropped("summary_first_dropout", 0.1),
    "choice_activation": activation("summary_activation", None),
    "norm_eps": Field("layer_norm_epsilon", 1e-5, Epsilon),
    "init_range": Field("initializer_range", 0.02, InitScale),
    "output": Field(
        "tie_word_embeddings",
        True,
        names={True: "tied", False: "own"},
        back={"tied": True, "own": False, "none": False},
    ),
    "pad": Field("pad_token_id", None, TokenId | None),
}
HARMLESS = [*SUMMARY, "n_ctx"]

GPT_ACTIVATIONS = {"gelu": "gelu-tanh", "relu": "relu", "silu": "swish", "swish": "swish"}
GPT_TABLE = ConfigTable(
    FIELDS
    | {
        "vocab_size": Field("vocab_size", 40478, Size),
        "max_length": Field("n_positions", 512, Size),
        # Their "gelu" is the approximation here, as in the paper's program, and in GPT-2 it is not.
        "activation": Field(
            "afn",
            "gelu",
            names=GPT_ACTIVATIONS,
            back={"gelu-tanh": "gelu", "relu": "relu", "swish": "silu"},
        ),
        "bos": Field("bos_token_id", None, TokenId | None),
        "eos": Field("eos_token_id", None, TokenId | None),
    },
    harmless=[*HARMLESS, "n_special", "predict_special_tokens"],
)
GPT_LAYOUT = _layout(
    GPT,
    "OpenAIGPT",
    "openai-gpt",
    GPT_TABLE,
    body=[
        ("embedding.weight", "tokens_embed.weight"),
        ("positions.vectors.weight", "positions_embed.weight"),
        *BLOCKS,
    ],
    heads={"classes": CLASSES, "multiple_choice": CHOICE},
    architectures={
        (): "OpenAIGPTModel",
        ("masked_lm",): "OpenAIGPTLMHeadModel",
        ("multiple_choice",): "OpenAIGPTDoubleHeadsModel",
        ("classes",): "OpenAIGPTForSequenceClassification",
    },
)

GPT2_TABLE = ConfigTable(
    FIELDS
    | {
        "vocab_size": Field("vocab_size", 50257, Size),
        "d_ff": Field("n_inner", None, Size | None),
        "max_length": Field("n_positions", 1024, Size),
        "activation": activation("activation_function", "gelu_new"),
        "head_dropout": dropped("classifier_dropout", None),
        "scaled": Field("scale_attn_weights", True, bool),
        "scaled_by_layer": Field("scale_attn_by_inverse_layer_idx", False, bool),
        "bos": Field("bos_token_id", 50256, TokenId | None),
        "eos": Field("eos_token_id", 50256, TokenId | None),
    },
    # The order of the factors and their type: ours is in float32 always, where it is the same.
    harmless=[*HARMLESS, "reorder_and_upcast_attn"],
)
GPT2_LAYOUT = _layout(
    GPT2,
    "GPT2",
    "gpt2",
    GPT2_TABLE,
    body=[
        ("embedding.weight", "wte.weight"),
        ("positions.vectors.weight", "wpe.weight"),
        *BLOCKS,
        *both("norm", "ln_f"),
    ],
    heads={
        "classes": CLASSES,
        "multiple_choice": CHOICE,
        "tags": HeadLayout(
            both("output", "classifier"), sign="classifier.weight", outputs="classifier.weight"
        ),
        "span": HeadLayout(both("output", "qa_outputs"), sign="qa_outputs.weight"),
    },
    architectures={
        (): "GPT2Model",
        ("masked_lm",): "GPT2LMHeadModel",
        ("multiple_choice",): "GPT2DoubleHeadsModel",
        ("classes",): "GPT2ForSequenceClassification",
        ("tags",): "GPT2ForTokenClassification",
        ("span",): "GPT2ForQuestionAnswering",
    },
)
