"""DistilBERT: "a distilled version of BERT" (Sanh et al. 2019).

    ids -> embed + positions -> norm -> L x [self-attention, feed-forward] -> hidden

Every second layer of BERT, taught by all of them. Segments and the pooler are gone; what came out
of the attention is not dropped; the class of a text is read through a layer with relu.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.heads import Pruned, cut_heads
from regard.attention.multihead import SelfAttention
from regard.attention.unpadded import FirstToken, TokenSubset
from regard.data.batches import Sequences
from regard.layers.dropout import Dropout
from regard.layers.feedforward import FeedForward
from regard.layers.heads import Answers, Inner, MaskedWords, everywhere, first
from regard.layers.norm import AddNorm
from regard.models.bert import Stacked, begin, no_head, words_of
from regard.models.blocks import Stack
from regard.models.config import Activation, Count, InitScale, Probability, Size, TokenId
from regard.ops import KeyMask
from regard.positions import LearnedPositions, sinusoid
from regard.text.templates import Template

NORM_EPS = 1e-12


@dataclass(frozen=True)
class DistilBertConfig:
    """The defaults are the base model.

    `sinusoidal` positions begin as sines and cosines; they are trained like any other. `pruned` are
    heads that were taken away, as `regard.prune_heads` leaves them.
    """

    vocab_size: Size
    d_model: Size = 768
    d_ff: Size = 3072
    heads: Size = 12
    layers: Count = 6
    max_length: Size = 512
    sinusoidal: bool = False
    activation: Activation = "gelu"
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    classes_dropout: Probability = 0.2  # of classes and choices
    span_dropout: Probability = 0.1
    init_range: InitScale = 0.02
    tied: bool = True
    pad: TokenId | None = 0
    pruned: Pruned = ()


SIZES = {"base": dict(d_model=768, d_ff=3072, heads=12, layers=6)}

PUBLISHED = {
    "base": {
        "parameters": (
            66e6,
            "Sanh et al. 2019, table 3, in millions; with the 30,522 uncased pieces of BERT the "
            "encoder has 66,362,880",
        )
    }
}


class DistilBertBlock(nn.Module):
    """x = norm(x + attend(x)); x = norm(x + feed(x))"""

    def __init__(self, config: DistilBertConfig):
        super().__init__()
        self.attention = SelfAttention(
            config.d_model, config.heads, kind="encoder", dropout=config.attention_dropout
        )
        self.attention_norm = AddNorm(config.d_model, eps=NORM_EPS)
        self.feed = FeedForward(config.d_model, config.d_ff, activation=config.activation)
        self.feed_norm = AddNorm(config.d_model, eps=NORM_EPS, dropout=config.dropout)

    def forward(self, hidden: Tensor, allowed: KeyMask) -> Tensor:
        return self._after(hidden, self.attention(hidden, allowed))

    def at(self, some: FirstToken | TokenSubset, hidden: Tensor, allowed: KeyMask) -> Tensor:
        """The same for some positions alone."""
        return self._after(some.of(hidden), self.attention.at(some, hidden, allowed))

    def _after(self, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = self.attention_norm(hidden, attended)
        return self.feed_norm(hidden, self.feed(hidden))


class DistilBert(Stacked):
    """DistilBERT without a head, an `Encoder`. It does not look at segments."""

    Config = DistilBertConfig
    SIZES = SIZES
    PUBLISHED = PUBLISHED
    pooled: tuple[str, ...] = ()

    def __init__(self, config: DistilBertConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad)
        self.positions = LearnedPositions(config.max_length, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, eps=NORM_EPS)
        self.dropout = Dropout(config.dropout)
        blocks = [DistilBertBlock(config) for _ in range(config.layers)]
        self.blocks = Stack(blocks)
        begin(self, config.init_range)
        if config.sinusoidal:
            table = sinusoid(torch.arange(config.max_length), config.d_model)
            with torch.no_grad():
                self.positions.vectors.weight.copy_(table)
        cut_heads(self, config.pruned)

    def embed(self, texts: Sequences) -> Tensor:
        """Token + position, (B, T, D)."""
        placed = self.embedding(texts.ids) + self.positions(texts.ids.size(1))
        return self.dropout(self.norm(placed))

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of one of the kinds in `regard.models.headed.HEADS` that need no pooler.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        config, width = self.config, self.config.d_model
        made: nn.Module
        match kind:
            case "masked_lm":
                softmax = words_of(self.embedding, config)
                made = MaskedWords(width, config.activation, NORM_EPS, softmax)
            case "classes" | "multiple_choice":
                inner, dropout = Inner(width, "relu"), config.classes_dropout
                made = Answers(width, outputs, place=first, inner=inner, dropout=dropout)
            case "tags":
                made = Answers(width, outputs, place=everywhere, dropout=config.dropout)
            case "span":
                made = Answers(width, 2, place=everywhere, dropout=config.span_dropout)
            case _:
                raise no_head(self, kind)
        return begin(made, config.init_range)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """[CLS] A [SEP] B [SEP], where the tokenizer's own file does not say it."""
        begins, ends = tokenizer.required_ids("cls", "sep")
        return Template.around((begins,), (ends,), (ends,))
