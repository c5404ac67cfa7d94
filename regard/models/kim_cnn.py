"""Convolutions over words: "Convolutional Neural Networks for Sentence Classification" (Kim 2014).

    words -> embed -> convolutions of several widths -> relu -> maximum over the text -> classes

Each filter is centred on a word; outside of a text there are zeros. The maximum is what the head
for classes reads, so that the features of every word can serve other tasks, too.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from regard.data.batches import Sequences
from regard.data.layout import ALL, TokenSubset
from regard.layers.task_heads import max_of_tokens
from regard.models.config import CONVOLUTIONAL, Filters, Probability, Size, TokenId
from regard.models.parts import HEAD_INIT, init_weights, linear_head
from regard.models.protocols import Encoder, States
from regard.text.templates import Template


@dataclass(frozen=True)
class KimCNNConfig:
    """The defaults are the paper's (section 3.1).

    d_words: of the vectors of words.
    filters: (width in words, number of filters).
    vectors: "non-static": trained; "static": not; "multichannel": a trained table and one that is
        not, each filter over both.
    """

    vocab_size: Size
    d_words: Size = 300
    filters: Filters = ((3, 100), (4, 100), (5, 100))
    vectors: Literal["non-static", "static", "multichannel"] = "non-static"
    dropout: Probability = 0.5
    max_length: Size | None = None  # any
    pad: TokenId | None = 0

    @property
    def d_model(self) -> int:
        """The features of a word."""
        return sum(count for _, count in self.filters)

    @property
    def layers(self) -> int:
        """One."""
        return 1

    def __post_init__(self) -> None:
        if not self.filters:
            raise ValueError("`filters` must have at least one width, such as [[3, 100]].")


class KimCNN(nn.Module, Encoder):
    """One layer of convolutions, an `Encoder`."""

    Config = KimCNNConfig
    family = CONVOLUTIONAL

    def __init__(self, config: KimCNNConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_words)
        nn.init.uniform_(self.embedding.weight, -0.25, 0.25)
        self.embedding.weight.requires_grad_(config.vectors != "static")
        self.frozen = None
        if config.vectors == "multichannel":
            self.frozen = nn.Embedding.from_pretrained(self.embedding.weight.detach().clone())
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.d_words, count, width) for width, count in config.filters
        )

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        return []

    @property
    def word_tables(self) -> list[nn.Embedding]:
        """Both tables of the multichannel model."""
        return [self.embedding] if self.frozen is None else [self.embedding, self.frozen]

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        """The vectors of words, and their features."""
        words = self.embedding(batch.ids)
        if self.frozen is not None:  # the sum of both convolutions is that of the sum
            words = words + self.frozen(batch.ids)
        yield words
        words = (words * batch.keep[..., None]).mT  # (B, T, D) -> (B, D, T)
        features = [
            F.relu(conv(F.pad(words, ((width - 1) // 2, width // 2))))  # (B, F, T)
            for conv, (width, _) in zip(self.convolutions, self.config.filters, strict=True)
        ]
        yield tokens.of(torch.cat(features, 1).mT)

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        return init_weights(linear_head(self, kind, outputs, pooling=max_of_tokens), HEAD_INIT)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """A, and A [SEP] B."""
        return Template.around((), tokenizer.required_ids("sep"), ())
