"""DistilBERT: "a distilled version of BERT" (Sanh et al. 2019).

    ids -> embed + positions -> norm -> L x [self-attention, feed-forward] -> hidden

Half of the layers of BERT, distilled from all of them. There are no segments and no pooler, no
dropout after attention, and the classifier has an inner layer with relu.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.multihead import SelfAttention
from regard.attention.pruning import Prunable, Pruned, prune_as_configured
from regard.data.batches import Sequences
from regard.data.layout import ALL, TokenSubset
from regard.layers.dropout import AddNorm, Dropout
from regard.layers.feedforward import FeedForward
from regard.layers.positions import LearnedPositions, sinusoid
from regard.layers.task_heads import (
    ClassificationHead,
    DenseActivation,
    MaskedLMHead,
    every_token,
    first_token,
)
from regard.models.bert import softmax_over
from regard.models.config import Activation, Count, InitScale, Probability, Size, TokenId
from regard.models.parts import TASK_HEADS, init_weights, no_head
from regard.models.protocols import Encoder, Output, States
from regard.ops import KeyMask
from regard.text.templates import Template

NORM_EPS = 1e-12


@dataclass(frozen=True)
class DistilBertConfig:
    """The defaults are the base model.

    sinusoidal: whether the learned positions are initialized with sinusoids.
    pruned: heads that were pruned, as `regard.attention.pruning.prune_heads` records them.
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
            "Sanh et al. 2019, table 3, in millions; with the 30,522 uncased tokens of BERT the "
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

    def forward(self, hidden: Tensor, mask: KeyMask, tokens: TokenSubset = ALL) -> Tensor:
        attended = self.attention(hidden, mask, tokens=tokens)
        hidden = self.attention_norm(tokens.of(hidden), attended)
        return self.feed_norm(hidden, self.feed(hidden))


class DistilBert(nn.Module, Encoder, Prunable):
    """DistilBERT without a head, an `Encoder`. It ignores segments."""

    Config = DistilBertConfig
    SIZES = SIZES
    PUBLISHED = PUBLISHED
    unpadded = True

    def __init__(self, config: DistilBertConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad)
        self.positions = LearnedPositions(config.max_length, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, eps=NORM_EPS)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(DistilBertBlock(config) for _ in range(config.layers))
        init_weights(self, config.init_range)
        if config.sinusoidal:
            table = sinusoid(torch.arange(config.max_length), config.d_model)
            with torch.no_grad():
                self.positions.vectors.weight.copy_(table)
        prune_as_configured(self, config.pruned)

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        return list(self.blocks)

    def forward(self, batch: Sequences) -> Output:
        """Hidden states of the last layer, (B, T, D), or (1, N, D) of an unpadded batch."""
        return Output(self.encode(batch))

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        hidden = self.embed(batch)
        yield hidden
        mask = batch.padding_mask()
        for block in self.blocks[:-1]:
            hidden = block(hidden, mask)
            yield hidden
        for block in self.blocks[-1:]:  # the last layer computes only `tokens`
            yield block(hidden, mask, tokens)

    def embed(self, batch: Sequences) -> Tensor:
        """Token + position, (B, T, D) or (1, N, D)."""
        return self.dropout(self.norm(self.embedding(batch.ids) + self.positions.of(batch)))

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head: one of the kinds in `encoder_with_heads.HEADS` that need no pooler.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        config, width = self.config, self.config.d_model
        head: nn.Module
        match kind:
            case "masked_lm":
                softmax = softmax_over(self.embedding, config)
                head = MaskedLMHead(width, config.activation, NORM_EPS, softmax)
            case "classes" | "multiple_choice":
                inner, dropout = DenseActivation(width, "relu"), config.classes_dropout
                head = ClassificationHead(
                    width, outputs, pooling=first_token, inner=inner, dropout=dropout
                )
            case "tags":
                head = ClassificationHead(
                    width, outputs, pooling=every_token, dropout=config.dropout
                )
            case "span":
                head = ClassificationHead(
                    width, 2, pooling=every_token, dropout=config.span_dropout
                )
            case _:
                raise no_head(self, kind, ("masked_lm", *TASK_HEADS))
        return init_weights(head, config.init_range)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """[CLS] A [SEP] B [SEP], where the tokenizer's file has no template."""
        begins, ends = tokenizer.required_ids("cls", "sep")
        return Template.around((begins,), (ends,), (ends,))
