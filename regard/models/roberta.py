"""RoBERTa, XLM-R and MPNet."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from regard.attention.relative import BiasRelation, RelativeBias, padded_positions, two_sided_bucket
from regard.data.batches import ALL, Sequences, TokenSubset
from regard.layers.positions import RobertaPositions
from regard.layers.task_heads import TASK_HEADS, dense_head, init_weights
from regard.models.bert import BASE_AND_LARGE, Bert, BertConfig, masked_lm_head
from regard.models.config import Epsilon, Size, TokenId
from regard.models.protocols import States
from regard.text.templates import Template

# ------------------------------------------------------------------------------------------ RoBERTa
#
# BERT trained longer and on more text, with byte-level BPE instead of WordPiece and without
# next-sentence prediction. The network is BERT's with three differences: there are no segments,
# positions are counted from `pad + 1`, and classification reads the first token through a dense
# layer that fine-tuning initializes, since there is no trained pooler.
#
# XLM-R (Conneau et al. 2020, "Unsupervised Cross-lingual Representation Learning at Scale") is the
# same network, trained on text in 100 languages, with 250,002 subwords of a unigram language model.


@dataclass(frozen=True)
class RobertaConfig(BertConfig):
    """The defaults are the base model. There are `pad + 1` vectors of positions that no token has.

    head_dropout: of the heads "classes" and "tags"; the head "multiple_choice" has `dropout`.
    """

    segments: Size = 1
    positions: Literal["learned"] = "learned"
    norm_eps: Epsilon = 1e-5
    pad: TokenId = 1


class Roberta(Bert):
    """RoBERTa: "A Robustly Optimized BERT Pretraining Approach" (Liu et al. 2019).

    RoBERTa without a head, an `Encoder`.
    """

    positions: RobertaPositions
    Config: type = RobertaConfig
    SIZES = BASE_AND_LARGE
    head_kinds = ("pooler", "masked_lm", *TASK_HEADS)
    # Published files carry a pooler, but nothing has trained it; their choices are read from it.
    pooled = ("pooler", "multiple_choice")

    def __init__(self, config: RobertaConfig):
        super().__init__(config)
        self.positions = RobertaPositions(config.max_length, config.d_model, config.pad)
        init_weights(self.positions, config.init_range)

    def _head(self, kind: str, outputs: int) -> nn.Module:
        config = self.config
        width, dropout = config.d_model, config.dropout_of_heads
        match kind:
            case "masked_lm":  # gelu, whatever the layers have
                return masked_lm_head(self.embedding, config, "gelu")
            case "classes":
                return dense_head(width, outputs, "tanh", inner_dropout=dropout, dropout=dropout)
            case "multiple_choice":
                return dense_head(width, outputs, "tanh", dropout=config.dropout)
            case _:
                return super()._head(kind, outputs)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """<s> A </s></s> B </s>, where the tokenizer's file has no template."""
        return Template.roberta(*tokenizer.required_ids("cls", "sep"))


@dataclass(frozen=True)
class XlmRobertaConfig(RobertaConfig):
    """The defaults are the base model."""


class XlmRoberta(Roberta):
    """XLM-R without a head, an `Encoder`."""

    Config = XlmRobertaConfig


# -------------------------------------------------------------------------------------------- MPNet
#
#     ids -> embed + positions -> norm -> L x [self-attention with a score bias, feed-forward]
#
# RoBERTa's network without segments, and with T5's relative positions beside the absolute ones: a
# learned number for each bucket of distances and each head, which all layers add to their scores.


@dataclass(frozen=True)
class MpnetConfig(RobertaConfig):
    """The defaults are the base model. There are no segments."""

    segments: Literal[1] = 1


class Mpnet(Roberta):
    """MPNet: "Masked and Permuted Pre-training for Language Understanding" (Song et al. 2020).

    MPNet without a head, an `Encoder`. It ignores segments.
    """

    Config = MpnetConfig
    SIZES = {"base": dict(d_model=768, d_ff=3072, heads=12, layers=12)}  # noqa: RUF012
    unpadded = False  # distances are those in a padded batch

    def __init__(self, config: MpnetConfig):
        super().__init__(config)
        self.segments = None
        self.relative = RelativeBias(config.heads, two_sided_bucket)
        init_weights(self.relative, config.init_range)

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        hidden = self.embed(batch)
        yield hidden
        mask, positions = batch.padding_mask(), padded_positions(batch)
        relation = BiasRelation(self.relative(positions, positions))  # of all layers
        for block in self.blocks[:-1]:
            hidden = block(hidden, mask, relation=relation)
            yield hidden
        for block in self.blocks[-1:]:  # the last layer computes only `tokens`
            yield block(hidden, mask, tokens, relation)
