"""RoBERTa: "A Robustly Optimized BERT Pretraining Approach" (Liu et al. 2019).

BERT trained longer and on more text, with byte-level BPE instead of WordPiece and without
next-sentence prediction. The network is BERT's with three differences: there are no segments,
positions are counted from `pad + 1`, and classification reads the first token through a dense layer
that fine-tuning initializes, since there is no trained pooler.

XLM-R (Conneau et al. 2020, "Unsupervised Cross-lingual Representation Learning at Scale") is the
same network, trained on text in 100 languages, with 250,002 subwords of a unigram language model.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from regard.layers.positions import RobertaPositions
from regard.layers.task_heads import ClassificationHead, DenseActivation, MaskedLMHead, first_token
from regard.models.bert import Bert, BertConfig, softmax_over
from regard.models.config import Epsilon, Size, TokenId
from regard.models.parts import TASK_HEADS, init_weights, no_head
from regard.text.templates import Template


@dataclass(frozen=True)
class RobertaConfig(BertConfig):
    """The defaults are the base model. There are `pad + 1` vectors of positions that no token has.

    head_dropout: of the heads "classes" and "tags"; the head "multiple_choice" has `dropout`.
    """

    segments: Size = 1
    positions: Literal["learned"] = "learned"
    norm_eps: Epsilon = 1e-5
    pad: TokenId = 1


SIZES = {
    "base": dict(d_model=768, d_ff=3072, heads=12, layers=12),
    "large": dict(d_model=1024, d_ff=4096, heads=16, layers=24),
}

_PARAMETERS = (
    "the released models' own page, rounded; with 50,265 tokens the encoder and its pooler have "
    "124,645,632 and 355,359,744"
)
PUBLISHED = {
    "base": {"parameters": (125e6, _PARAMETERS)},
    "large": {"parameters": (355e6, _PARAMETERS)},
}


class Roberta(Bert):
    """RoBERTa without a head, an `Encoder`."""

    positions: RobertaPositions
    Config: type = RobertaConfig
    SIZES = SIZES
    PUBLISHED = PUBLISHED
    # Published files carry a pooler, but nothing has trained it; their choices are read from it.
    pooled = ("pooler", "multiple_choice")

    def __init__(self, config: RobertaConfig):
        super().__init__(config)
        self.positions = RobertaPositions(config.max_length, config.d_model, config.pad)
        init_weights(self.positions, config.init_range)

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head: one of the kinds in `encoder_with_heads.HEADS`, but for "next_sentence".

        Raises:
            ConfigError: this family has no head of that kind.
        """
        config = self.config
        width, dropout = config.d_model, config.head_dropout
        dropout = config.dropout if dropout is None else dropout
        head: nn.Module
        match kind:
            case "masked_lm":  # gelu, whatever the layers have
                head = MaskedLMHead(
                    width, "gelu", config.norm_eps, softmax_over(self.embedding, config)
                )
            case "classes":
                inner = DenseActivation(width, "tanh", dropout)
                head = ClassificationHead(
                    width, outputs, pooling=first_token, inner=inner, dropout=dropout
                )
            case "multiple_choice":
                inner = DenseActivation(width, "tanh")
                head = ClassificationHead(
                    width, outputs, pooling=first_token, inner=inner, dropout=config.dropout
                )
            case "next_sentence":
                raise no_head(self, kind, ("pooler", "masked_lm", *TASK_HEADS))
            case _:
                return super().new_head(kind, outputs)
        return init_weights(head, config.init_range)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """<s> A </s></s> B </s>, where the tokenizer's file has no template."""
        return Template.roberta(*tokenizer.required_ids("cls", "sep"))


@dataclass(frozen=True)
class XlmRobertaConfig(RobertaConfig):
    """The defaults are the base model."""


_XLM_PARAMETERS = (
    "Conneau et al. 2020, the sizes in its appendix, rounded; with 250,002 tokens the encoder "
    "and its pooler have 278,043,648 and 559,890,432"
)
XLM_PUBLISHED = {
    "base": {"parameters": (270e6, _XLM_PARAMETERS)},
    "large": {"parameters": (550e6, _XLM_PARAMETERS)},
}


class XlmRoberta(Roberta):
    """XLM-R without a head, an `Encoder`."""

    Config = XlmRobertaConfig
    PUBLISHED = XLM_PUBLISHED
