"""BERT: "Pre-training of Deep Bidirectional Transformers" (Devlin et al. 2019).

    ids -> embed + positions + segments -> norm -> L x [self-attention, feed-forward] -> hidden

The encoder of the Transformer with learned positions, a learned vector for each of two segments and
gelu; every position attends to every other. Heads on top predict masked tokens, whether one text
follows another, and the classes of texts, tokens and spans.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.multihead import SelfAttention
from regard.attention.pruning import Prunable, Pruned, prune_as_configured
from regard.attention.relative_protocol import Relation
from regard.data.batches import Sequences
from regard.data.layout import ALL, TokenSubset
from regard.layers.dropout import AddNorm, Dropout
from regard.layers.feedforward import FeedForward
from regard.layers.softmax import Softmax
from regard.layers.task_heads import (
    ClassificationHead,
    DenseActivation,
    MaskedLMHead,
    Pooler,
    every_token,
    first_token,
)
from regard.models.config import (
    Activation,
    Count,
    EncoderPositions,
    Epsilon,
    InitScale,
    Probability,
    Size,
    TokenId,
)
from regard.models.parts import (
    TASK_HEADS,
    absolute_positions,
    init_weights,
    no_head,
    reads_unpadded,
    relative_positions,
)
from regard.models.protocols import Encoder, Output, States
from regard.ops import KeyMask
from regard.text.templates import Template


@dataclass(frozen=True)
class BertConfig:
    """The defaults are the base model.

    head_dropout: dropout of the heads "classes", "multiple_choice" and "tags"; None: `dropout`.
    positions: one of the kinds of `regard.models.parts`; the paper's are learned.
    clip_distance: distances beyond it share a vector (kinds "shaw" and "dependency-relative");
        None: 16.
    pruned: heads that were pruned, as `regard.attention.pruning.prune_heads` records them.
    """

    vocab_size: Size
    d_model: Size = 768
    d_ff: Size = 3072
    heads: Size = 12
    layers: Count = 12
    segments: Size = 2
    max_length: Size = 512
    positions: EncoderPositions = "learned"
    clip_distance: Size | None = None
    activation: Activation = "gelu"
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    head_dropout: Probability | None = None
    norm_eps: Epsilon = 1e-12
    init_range: InitScale = 0.02  # standard deviation of the initial matrices
    tied: bool = True  # the embedding is the masked words' output too
    pad: TokenId | None = 0
    pruned: Pruned = ()

    @property
    def d_embedding(self) -> int:
        """The width of the embeddings: here `d_model`; ElectraConfig and AlbertConfig make it a
        field, and project the embeddings to `d_model`."""
        return self.d_model

    @property
    def distinct_layers(self) -> int:
        """How many layers have parameters of their own."""
        return self.layers


SIZES = {
    "tiny": dict(d_model=128, d_ff=512, heads=2, layers=2),
    "mini": dict(d_model=256, d_ff=1024, heads=4, layers=4),
    "small": dict(d_model=512, d_ff=2048, heads=8, layers=4),
    "medium": dict(d_model=512, d_ff=2048, heads=8, layers=8),
    "base": dict(d_model=768, d_ff=3072, heads=12, layers=12),
    "large": dict(d_model=1024, d_ff=4096, heads=16, layers=24),
}

_PARAMETERS = (
    "Devlin et al. 2019, section 3.1, rounded; with the 30,522 uncased tokens the encoder and its "
    "pooler have 109,482,240 and 335,141,888. The multilingual cased model is said to have 110M "
    "too, but with its 119,547 tokens it has 177,853,440"
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

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask,
        tokens: TokenSubset = ALL,
        relation: Relation | None = None,
    ) -> Tensor:
        attended = self.attention(hidden, mask, relation=relation, tokens=tokens)
        hidden = self.attention_norm(tokens.of(hidden), attended)
        return self.feed_norm(hidden, self.feed(hidden))


class Bert(nn.Module, Encoder, Prunable):
    """BERT without a head, an `Encoder`."""

    Config: type = BertConfig
    SIZES = SIZES
    PUBLISHED = PUBLISHED
    unpadded = True
    block: type[nn.Module] = BertBlock
    # The heads whose inner layer is the pre-trained pooler.
    pooled: tuple[str, ...] = ("pooler", "next_sentence", "classes", "multiple_choice")

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = config
        # The vector of padding gets no gradient, as in the published program.
        width = config.d_embedding
        self.embedding = nn.Embedding(config.vocab_size, width, padding_idx=config.pad)
        self.positions = absolute_positions(config, width)
        self.relations = relative_positions(config, config.layers)
        self.unpadded = type(self).unpadded and reads_unpadded(config)
        self.segments = nn.Embedding(config.segments, width)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(self.block(config) for _ in range(config.distinct_layers))
        init_weights(self, config.init_range)
        prune_as_configured(self, config.pruned)

    @property
    def segment_types(self) -> int:
        return self.config.segments

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        return list(self.blocks)

    def forward(self, batch: Sequences) -> Output:
        """Hidden states of the last layer, (B, T, D), or (1, N, D) of an unpadded batch."""
        return Output(self.encode(batch))

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        hidden = self.embed(batch)
        yield hidden
        mask, relations = batch.padding_mask(), self.relations.of(batch)
        for block, relation in zip(self.blocks[:-1], relations, strict=False):
            hidden = block(hidden, mask, relation=relation)
            yield hidden
        for block in self.blocks[-1:]:  # the last layer computes only `tokens`
            yield block(hidden, mask, tokens, relations[-1])

    def embed(self, batch: Sequences) -> Tensor:
        """Token + position + segment (figure 2 of the paper), (B, T, D) or (1, N, D)."""
        segments = torch.zeros_like(batch.ids) if batch.segments is None else batch.segments
        summed = self.embedding(batch.ids) + self.segments(segments) + self.positions.of(batch)
        return self.dropout(self.norm(summed))

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        config = self.config
        width, dropout = config.d_model, config.head_dropout
        dropout = config.dropout if dropout is None else dropout
        head: nn.Module
        match kind:
            case "pooler":
                head = Pooler(width)
            case "masked_lm":
                softmax = softmax_over(self.embedding, config)
                head = MaskedLMHead(width, config.activation, config.norm_eps, softmax)
            case "next_sentence":
                head = ClassificationHead(
                    width, 2, pooling=first_token, inner=DenseActivation(width, "tanh")
                )
            case "classes" | "multiple_choice":
                inner = DenseActivation(width, "tanh")
                head = ClassificationHead(
                    width, outputs, pooling=first_token, inner=inner, dropout=dropout
                )
            case "tags":
                head = ClassificationHead(width, outputs, pooling=every_token, dropout=dropout)
            case "span":
                head = ClassificationHead(width, 2, pooling=every_token)
            case _:
                raise no_head(self, kind, ("pooler", "masked_lm", "next_sentence", *TASK_HEADS))
        return init_weights(head, config.init_range)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """[CLS] A [SEP] B [SEP], where the tokenizer's file has no template."""
        return Template.bert(*tokenizer.required_ids("cls", "sep"))


def softmax_over(embedding: nn.Embedding, config: Any) -> Softmax:
    """The output layer over the vocabulary; with `config.tied` its matrix is the embedding's."""
    tied = embedding if config.tied else None
    softmax = Softmax(embedding.embedding_dim, config.vocab_size, tied=tied, bias=True)
    if tied is None:
        nn.init.normal_(softmax.weight, std=config.init_range)
    return softmax
