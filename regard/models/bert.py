"""BERT: "Pre-training of Deep Bidirectional Transformers" (Devlin et al. 2019).

    ids -> embed + positions + segments -> norm -> L x [self-attention, feed-forward] -> hidden

The encoder of the Transformer with learned positions, a learned vector for each of two segments and
gelu; every position sees every other. What it is asked is answered by a head on top: which word is
masked, whether one text follows another, the class of a text, of a word, of a span.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.heads import Pruned, cut_heads
from regard.attention.multihead import SelfAttention
from regard.attention.unpadded import FirstToken, TokenSubset
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.layers.dropout import Dropout
from regard.layers.feedforward import FeedForward
from regard.layers.heads import Answers, Inner, MaskedWords, Pooler, everywhere, first
from regard.layers.norm import AddNorm
from regard.layers.output import Softmax
from regard.models.blocks import Chosen, Stack
from regard.models.config import Activation, Count, Epsilon, InitScale, Probability, Size, TokenId
from regard.models.protocols import Encoder, Output
from regard.ops import KeyMask
from regard.positions import LearnedPositions
from regard.text.templates import Template


@dataclass(frozen=True)
class BertConfig:
    """The defaults are the base model. `head_dropout` None means `dropout`.

    `pruned` are heads that were taken away, as `regard.prune_heads` leaves them.
    """

    vocab_size: Size
    d_model: Size = 768
    d_ff: Size = 3072
    heads: Size = 12
    layers: Count = 12
    segments: Size = 2
    max_length: Size = 512
    activation: Activation = "gelu"
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    head_dropout: Probability | None = None
    norm_eps: Epsilon = 1e-12
    init_range: InitScale = 0.02  # matrices start normal with this deviation
    tied: bool = True  # the embedding is the masked words' output too
    pad: TokenId | None = 0
    pruned: Pruned = ()


SIZES = {
    "tiny": dict(d_model=128, d_ff=512, heads=2, layers=2),
    "mini": dict(d_model=256, d_ff=1024, heads=4, layers=4),
    "small": dict(d_model=512, d_ff=2048, heads=8, layers=4),
    "medium": dict(d_model=512, d_ff=2048, heads=8, layers=8),
    "base": dict(d_model=768, d_ff=3072, heads=12, layers=12),
    "large": dict(d_model=1024, d_ff=4096, heads=16, layers=24),
}

_PARAMETERS = (
    "Devlin et al. 2019, section 3.1, rounded; with the 30,522 uncased pieces the encoder and its "
    "pooler have 109,482,240 and 335,141,888. The multilingual cased model is said to have 110M "
    "too, but with its 119,547 pieces it has 177,853,440"
)
_SMALL = "Turc et al. 2019, who count the head over masked words too"
PUBLISHED = {
    "tiny": {"parameters": (4.4e6, _SMALL)},
    "mini": {"parameters": (11.3e6, _SMALL)},
    "small": {"parameters": (29.1e6, _SMALL)},
    "medium": {"parameters": (41.7e6, _SMALL)},
    "base": {"parameters": (110e6, _PARAMETERS)},
    "large": {"parameters": (340e6, _PARAMETERS)},
}


class BertBlock(nn.Module):
    """x = norm(x + attend(x)); x = norm(x + feed(x))"""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.attention = SelfAttention(
            config.d_model, config.heads, kind="encoder", dropout=config.attention_dropout
        )
        norm = partial(AddNorm, config.d_model, eps=config.norm_eps, dropout=config.dropout)
        self.attention_norm = norm()
        self.feed = FeedForward(config.d_model, config.d_ff, activation=config.activation)
        self.feed_norm = norm()

    def forward(self, hidden: Tensor, allowed: KeyMask) -> Tensor:
        return self._after(hidden, self.attention(hidden, allowed))

    def at(self, some: FirstToken | TokenSubset, hidden: Tensor, allowed: KeyMask) -> Tensor:
        """The same for some positions alone."""
        return self._after(some.of(hidden), self.attention.at(some, hidden, allowed))

    def _after(self, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = self.attention_norm(hidden, attended)
        return self.feed_norm(hidden, self.feed(hidden))


class Stacked(nn.Module, Encoder):
    """Embeddings and a stack of blocks in which every position sees every other: how it is read."""

    blocks: Any  # a `Stack`
    unpadded = True

    @abstractmethod
    def embed(self, texts: Sequences) -> Tensor:
        """What the first block reads, (B, T, D)."""

    @property
    def places(self) -> int:  # type: ignore[override]
        """See `Encoder`."""
        return self.blocks.places

    def forward(self, texts: Sequences) -> Output:
        """Hidden states (B, T, D) of all tokens."""
        return Output(self.encode(texts))

    def encode(self, texts: Sequences) -> Tensor:
        """Hidden states of the last layer, (B, T, D)."""
        return self.blocks.read(self.embed, texts)

    def encode_first(self, texts: Sequences) -> Tensor:
        """That of the first token alone, (B, 1, D): the last layer computes no other."""
        return self.blocks.first(self.embed, texts)

    def encode_at(self, texts: Sequences, places: Tensor) -> Tensor:
        """Those of some tokens alone, row by row: places (B, T), boolean -> (M, D).

        In training on a CPU the last layer computes no other: where one word in seven is predicted,
        that spares seven tenths of it.

        Raises:
            ValueError: places of padding are asked for.
        """
        return self.blocks.at(self.embed, texts, places)

    def chosen(self, texts: Sequences, choice: Chosen) -> Tensor:
        """What is chosen of all layers for the tokens of all rows, end to end, (N, D)."""
        return self.blocks.chosen(self.embed, texts, choice)

    def layers(self, texts: Sequences) -> Iterator[Tensor]:
        """Hidden states (B, T, D) of the embeddings and then of each layer: L + 1 of them."""
        return self.blocks.layers(self.embed, texts)


class Bert(Stacked):
    """BERT without a head, an `Encoder`."""

    Config: type = BertConfig
    SIZES = SIZES
    PUBLISHED = PUBLISHED
    # The heads whose inner layer is the pooler that came out of pre-training.
    pooled: tuple[str, ...] = ("pooler", "next_sentence", "classes", "multiple_choice")

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = config
        # The vector of padding is never trained, as in the published program.
        self.embedding = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad)
        self.positions = LearnedPositions(config.max_length, config.d_model)
        self.segments = nn.Embedding(config.segments, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout)
        blocks = [BertBlock(config) for _ in range(config.layers)]
        self.blocks = Stack(blocks)
        begin(self, config.init_range)
        cut_heads(self, config.pruned)

    @property
    def segment_types(self) -> int:
        """See `Encoder`."""
        return self.config.segments

    def embed(self, texts: Sequences) -> Tensor:
        """Token + position + segment (figure 2 of the paper), (B, T, D)."""
        segments = torch.zeros_like(texts.ids) if texts.segments is None else texts.segments
        summed = self.embedding(texts.ids) + self.segments(segments)
        return self.dropout(self.norm(summed + self.place(texts.ids)))

    def place(self, ids: Tensor) -> Tensor:
        """The vectors of the positions that ids (B, T) stand at: (T, D), or (B, T, D)."""
        return self.positions(ids.size(1))

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of one of the kinds in `regard.models.headed.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        config = self.config
        width, dropout = config.d_model, config.head_dropout
        dropout = config.dropout if dropout is None else dropout
        made: nn.Module
        match kind:
            case "pooler":
                made = Pooler(width)
            case "masked_lm":
                softmax = words_of(self.embedding, config)
                made = MaskedWords(width, config.activation, config.norm_eps, softmax)
            case "next_sentence":
                made = Answers(width, 2, place=first, inner=Inner(width, "tanh"))
            case "classes" | "multiple_choice":
                inner = Inner(width, "tanh")
                made = Answers(width, outputs, place=first, inner=inner, dropout=dropout)
            case "tags":
                made = Answers(width, outputs, place=everywhere, dropout=dropout)
            case "span":
                made = Answers(width, 2, place=everywhere)
            case _:
                raise no_head(self, kind)
        return begin(made, config.init_range)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """[CLS] A [SEP] B [SEP], where the tokenizer's own file does not say it."""
        return Template.bert(*tokenizer.required_ids("cls", "sep"))


def begin(module: nn.Module, deviation: float) -> nn.Module:
    """Matrices and embeddings normal around 0, biases 0, norms 1 (section A.2 of GPT's paper)."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=deviation)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
    return module


def words_of(embedding: nn.Embedding, config: Any) -> Softmax:
    """The output over words: the embedding itself, or where that is not `tied` one like it."""
    tied = embedding if config.tied else None
    softmax = Softmax(config.d_model, config.vocab_size, tied=tied, bias=True)
    if tied is None:
        nn.init.normal_(softmax.weight, std=config.init_range)
    return softmax


def no_head(encoder: nn.Module, kind: str) -> ConfigError:
    """For a head that a family never had."""
    return ConfigError(f"{type(encoder).__name__} has no head {kind!r}.")
