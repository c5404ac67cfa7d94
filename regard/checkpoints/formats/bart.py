"""The published layouts of BART and mBART, with their heads for classes and answers, and of M2M-100
and NLLB.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from regard.checkpoints.formats.config_table import activation, dropout, unsupported
from regard.checkpoints.formats.encoder_decoder_layout import (
    EMBEDDING,
    FIELDS,
    SOURCE,
    TARGET,
    EncoderDecoderFields,
    EncoderDecoderLayout,
    Order,
    last_norms,
    scale_embedding,
    token_fields,
)
from regard.checkpoints.formats.encoder_layout import EncoderLayout, HeadLayout, affine
from regard.checkpoints.names import Names
from regard.models.bart import Bart, BartAsEncoder, MBart, MBartAsEncoder
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.transformer import M2M100, Transformer

START = "decoder_start_token_id"
CAUSAL = "Decoders without an encoder are not supported"
ROWS = [
    *Order().blocks(),
    ("positions.vectors.weight", "model.encoder.embed_positions.weight"),
    ("decoder_positions.vectors.weight", "model.decoder.embed_positions.weight"),
    *Order().norm("embedding_norm", "model.encoder.layernorm_embedding"),
    *Order().norm("decoder_embedding_norm", "model.decoder.layernorm_embedding"),
]


# ----------------------------------------------------------------------------------- heads


class BartFields(EncoderDecoderFields):
    """The fields of the whole model under a head."""

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        values = super().read(config)
        if not values["tied"]:
            said = "under a head there is no output to untie"
            raise unsupported("tie_word_embeddings", "true", False, said)
        return values


class MBartFields(BartFields):
    """Under a head the decoder starts with the last token of a text, not with a token of its own,
    which config.json then need not have.
    """

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        if config.get(START) is None:
            config = {**config, START: config.get("eos_token_id", 2)}
        return super().read(config)


class BartHeadsLayout(EncoderLayout):
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


@dataclass(frozen=True)
class BartLayout(EncoderDecoderLayout):
    """BART with its output, or under a head.

    heads: the layout under a head.
    """

    heads: BartHeadsLayout | None = None

    @property
    def under_head(self) -> BartHeadsLayout:
        """The layout under a head."""
        assert self.heads is not None
        return self.heads

    @property
    def known_architectures(self) -> Collection[str]:
        return (*super().known_architectures, *self.under_head.known_architectures)

    def holds(self, model: nn.Module) -> bool:
        return super().holds(model) or self.under_head.holds(model)

    def write(
        self, model: Transformer | EncoderWithHeads
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        if isinstance(model, EncoderWithHeads):
            return self.under_head.write(model)
        return super().write(model)

    def read(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
        named = (config.get("architectures") or [""])[0]
        signs = {head.sign for head in self.under_head.heads.values()}
        if named in self.under_head.known_architectures or (not named and signs & {*tensors}):
            return self.under_head.read(config, tensors)
        return super().read(config, tensors)

    def names_of(self, model: nn.Module) -> Names:
        if isinstance(model, EncoderWithHeads):
            return self.under_head.names_of(model)
        return super().names_of(model)

    def architecture_of(self, model: nn.Module) -> str:
        return self.under_head.architecture_of(model) if _has_head(model) else self.architecture

    def with_architecture(
        self, model: nn.Module, name: str, tensors: Mapping[str, Tensor]
    ) -> nn.Module:
        if _has_head(model):
            return cast(nn.Module, self.under_head.with_architecture(model, name, tensors))
        return super().with_architecture(model, name, tensors)


def _has_head(model: object) -> bool:
    return isinstance(model, EncoderWithHeads)


def _inside(theirs: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Their names without the prefix of the whole model."""
    if isinstance(theirs, str):
        return theirs.removeprefix("model.")
    return tuple(name.removeprefix("model.") for name in theirs)


def _with_heads(
    whole: EncoderDecoderLayout, model: type[BartAsEncoder], fields: type[BartFields]
) -> BartLayout:
    """The same layout, and that of the model under heads, which `model` is there."""
    body = [(f"bart.{ours}", _inside(theirs), *rest) for ours, theirs, *rest in whole.rows]
    heads = BartHeadsLayout(
        model=model,
        family=whole.family,
        model_type=whole.model_type,
        config=fields({**whole.config.fields, "head_dropout": dropout("classifier_dropout", 0.0)}),
        prefix="model.",
        body=body,
        adapted=whole.adapted,
        heads={
            "classes": HeadLayout(
                [
                    *affine("inner.dense", "classification_head.dense"),
                    *affine("output", "classification_head.out_proj"),
                ]
            ),
            "span": HeadLayout(affine("output", "qa_outputs")),
        },
    )
    return BartLayout(**vars(whole), heads=heads)


WHOLE = EncoderDecoderLayout(
    Bart,
    "bart",
    "Bart",
    "BartForConditionalGeneration",
    ROWS,
    EncoderDecoderFields(
        FIELDS | scale_embedding(False) | token_fields(50265, pad=1, start=2, eos=2)
    ),
    others=("BartModel",),
    unsupported={"BartForCausalLM": CAUSAL},
)
BART = _with_heads(WHOLE, BartAsEncoder, BartFields)
WHOLE_MBART = replace(
    WHOLE,
    model=MBart,
    model_type="mbart",
    family="MBart",
    architecture="MBartForConditionalGeneration",
    rows=[*ROWS, *last_norms(Order())],
    others=("MBartModel",),
    unsupported={"MBartForCausalLM": CAUSAL},
)
MBART = _with_heads(WHOLE_MBART, MBartAsEncoder, MBartFields)


class M2M100Fields(EncoderDecoderFields):
    """The padding has no position."""

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        values = super().read(config)
        if values["bos"] == values["pad"]:  # their program skips it when it counts positions
            must = f"another id than `pad_token_id` ({values['pad']})"
            raise unsupported("decoder_start_token_id", must, values["bos"])
        return values


M2M_100 = EncoderDecoderLayout(
    M2M100,
    "m2m_100",
    "M2M100",
    "M2M100ForConditionalGeneration",
    [*Order().blocks(), *last_norms(Order())],
    M2M100Fields(
        {
            **FIELDS,
            "attention_dropout": dropout("attention_dropout", 0.1),
            "activation": activation("activation_function", "relu"),
            **scale_embedding(True),
            **token_fields(128112, pad=1, start=2, eos=2),
        }
    ),
    biased=False,
    others=("M2M100Model",),
    computed=("model.encoder.embed_positions.weights", "model.decoder.embed_positions.weights"),
)
