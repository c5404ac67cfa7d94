"""BERT, and the two that made it smaller: DistilBERT and ALBERT."""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from regard.attention.attend import Relation
from regard.attention.multihead import SelfAttention
from regard.attention.pruning import Prunable, Pruned, prune_as_configured
from regard.attention.relative import absolute_positions, reads_unpadded, relative_positions
from regard.data.batches import ALL, Sequences, TokenSubset
from regard.errors import ConfigError
from regard.layers import task_heads
from regard.layers.dropout import AddNorm, Dropout
from regard.layers.feedforward import FeedForward
from regard.layers.linear import Linear
from regard.layers.positions import sinusoid
from regard.layers.softmax import Softmax
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
from regard.models.protocols import Encoder, Output, States
from regard.ops import KeyMask
from regard.text.templates import Template

# --------------------------------------------------------------------------------------------- BERT
#
#     ids -> embed + positions + segments -> norm -> L x [self-attention, feed-forward] -> hidden
#
# The encoder of the Transformer with learned positions, a learned vector for each of two segments
# and gelu; every position attends to every other. Heads on top predict masked tokens, whether one
# text follows another, and the classes of texts, tokens and spans.


@dataclass(frozen=True)
class BertConfig:
    """The defaults are the base model.

    head_dropout: dropout of the heads "classes", "multiple_choice" and "tags"; None: `dropout`.
    positions: one of the kinds of `regard.models.config`; the paper's are learned.
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

    @property
    def dropout_of_heads(self) -> float:
        """`head_dropout`, or `dropout` where it is None."""
        return self.dropout if self.head_dropout is None else self.head_dropout


# the sizes that most of its successors have, too
BASE_AND_LARGE = {
    "base": dict(d_model=768, d_ff=3072, heads=12, layers=12),
    "large": dict(d_model=1024, d_ff=4096, heads=16, layers=24),
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
    """BERT: "Pre-training of Deep Bidirectional Transformers" (Devlin et al. 2019).

    BERT without a head, an `Encoder`.
    """

    Config: type = BertConfig
    SIZES = {
        "tiny": dict(d_model=128, d_ff=512, heads=2, layers=2),
        "mini": dict(d_model=256, d_ff=1024, heads=4, layers=4),
        "small": dict(d_model=512, d_ff=2048, heads=8, layers=4),
        "medium": dict(d_model=512, d_ff=2048, heads=8, layers=8),
        **BASE_AND_LARGE,
    }
    unpadded = True
    block: type[nn.Module] = BertBlock
    head_kinds: tuple[str, ...] = ("pooler", "masked_lm", "next_sentence", *task_heads.TASK_HEADS)
    # Of these, those whose inner layer is the pre-trained pooler.
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
        self.segments = nn.Embedding(config.segments, width) if config.segments else None
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(self.block(config) for _ in range(config.distinct_layers))
        task_heads.init_weights(self, config.init_range)
        prune_as_configured(self, config.pruned)

    @property
    def segment_types(self) -> int:
        return self.config.segments

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
        words = self.embedding(batch.ids)
        if self.segments is not None:
            segments = torch.zeros_like(batch.ids) if batch.segments is None else batch.segments
            words = words + self.segments(segments)
        return self.dropout(self.norm(words + self.positions.of(batch)))

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        if kind not in self.head_kinds:
            raise task_heads.no_head(self, kind, self.head_kinds)
        return task_heads.init_weights(self._head(kind, outputs), self.config.init_range)

    def _head(self, kind: str, outputs: int) -> nn.Module:
        config, width = self.config, self.config.d_model
        match kind:
            case "pooler":
                return task_heads.Pooler(width)
            case "masked_lm":
                return masked_lm_head(self.embedding, config, config.activation)
            case "next_sentence":
                return task_heads.dense_head(width, 2, "tanh")
            case "classes" | "multiple_choice":
                return task_heads.dense_head(
                    width, outputs, "tanh", dropout=config.dropout_of_heads
                )
            case _:
                return task_heads.token_head(self, kind, outputs, dropout=config.dropout_of_heads)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """[CLS] A [SEP] B [SEP], where the tokenizer's file has no template."""
        return Template.bert(*tokenizer.required_ids("cls", "sep"))


def masked_lm_head(
    embedding: nn.Embedding, config: BertConfig, activation: str
) -> task_heads.MaskedLMHead:
    """The head over the vocabulary; with `config.tied` its matrix is the embedding's."""
    tied = embedding if config.tied else None
    softmax = Softmax(embedding.embedding_dim, config.vocab_size, tied=tied, bias=True)
    if tied is None:
        nn.init.normal_(softmax.weight, std=config.init_range)
    return task_heads.MaskedLMHead(config.d_model, activation, config.norm_eps, softmax)


# --------------------------------------------------------------------------------------- DistilBERT
#
#     ids -> embed + positions -> norm -> L x [self-attention, feed-forward] -> hidden
#
# Half of the layers of BERT, distilled from all of them. There are no segments and no pooler, no
# dropout after attention, and the classifier has an inner layer with relu.


@dataclass(frozen=True)
class DistilBertConfig(BertConfig):
    """The defaults are the base model. There are no segments.

    sinusoidal: whether the learned positions are initialized with sinusoids.
    classes_dropout: of the heads "classes" and "multiple_choice".  span_dropout: of "span".
    """

    layers: Count = 6
    segments: Literal[1] = 1
    positions: Literal["learned"] = "learned"
    sinusoidal: bool = False
    head_dropout: None = None
    classes_dropout: Probability = 0.2
    span_dropout: Probability = 0.1


class DistilBertBlock(BertBlock):
    """x = norm(x + attend(x)); x = norm(x + drop(feed(x)))"""

    def __init__(self, config: DistilBertConfig):
        super().__init__(config)
        self.attention_norm = AddNorm(config.d_model, eps=config.norm_eps)


class DistilBert(Bert):
    """DistilBERT: "a distilled version of BERT" (Sanh et al. 2019).

    DistilBERT without a head, an `Encoder`. It ignores segments.
    """

    Config = DistilBertConfig
    SIZES = {"base": dict(d_model=768, d_ff=3072, heads=12, layers=6)}
    block = DistilBertBlock
    head_kinds = ("masked_lm", *task_heads.TASK_HEADS)
    pooled = ()

    def __init__(self, config: DistilBertConfig):
        super().__init__(config)
        self.segments = None
        if config.sinusoidal:
            table = sinusoid(torch.arange(config.max_length), config.d_model)
            with torch.no_grad():
                self.positions.get_parameter("vectors.weight").copy_(table)

    def _head(self, kind: str, outputs: int) -> nn.Module:
        config = self.config
        match kind:
            case "classes" | "multiple_choice":
                dropout = config.classes_dropout
                return task_heads.dense_head(config.d_model, outputs, "relu", dropout=dropout)
            case _ if kind in task_heads.TASK_HEADS:
                dropouts = dict(dropout=config.dropout, span_dropout=config.span_dropout)
                return task_heads.token_head(self, kind, outputs, **dropouts)
            case _:
                return super()._head(kind, outputs)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """[CLS] A [SEP] B [SEP], where the tokenizer's file has no template."""
        begins, ends = tokenizer.required_ids("cls", "sep")
        return Template.around((begins,), (ends,), (ends,))


# ------------------------------------------------------------------------------------------- ALBERT
#
#     ids -> embed + positions + segments -> norm -> project -> L x [self-attention, feed-forward]
#
# BERT with few parameters: all layers of a group are the same layer, and embeddings of a smaller
# width are projected to `d_model`. Beside masked words it learned whether two parts of a text stand
# in their order. There is no dropout after the feed-forward network.


@dataclass(frozen=True)
class AlbertConfig(BertConfig):
    """The defaults are the base model.

    layers: depth; a multiple of `layers_per_group`.
    groups: number of parameter groups; consecutive layers of a group share parameters.
    layers_per_group: distinct layers of a group, applied in turn.
    head_dropout: of the heads "sentence_order", "classes", "multiple_choice" and "tags".
    """

    d_embedding: Size = 128
    positions: Literal["learned"] = "learned"
    groups: Size = 1
    layers_per_group: Size = 1
    activation: Activation = "gelu-tanh"
    dropout: Probability = 0.0
    attention_dropout: Probability = 0.0
    head_dropout: Probability = 0.1

    @property
    def distinct_layers(self) -> int:
        return self.groups * self.layers_per_group

    @property
    def block_of_layer(self) -> list[int]:
        """The block of each layer.

        With R = layers / layers_per_group rounds, round i is of group floor(i / (R / groups)).
        """
        rounds, distinct = self.layers // self.layers_per_group, self.layers_per_group
        groups = [int(i / (rounds / self.groups)) for i in range(rounds)]
        return [group * distinct + i for group in groups for i in range(distinct)]


class AlbertBlock(BertBlock):
    """x = norm(x + drop(attend(x))); x = norm(x + feed(x))"""

    def __init__(self, config: AlbertConfig):
        super().__init__(config)
        self.feed_norm = AddNorm(config.d_model, eps=config.norm_eps)


class Albert(Bert):
    """ALBERT: "A Lite BERT for Self-supervised Learning of Language Representations" (Lan et al.
    2020).

    ALBERT without a head, an `Encoder`.

    Raises:
        ConfigError: `layers` is not a multiple of `layers_per_group`.
    """

    Config = AlbertConfig
    SIZES = {
        "base": dict(d_model=768, d_ff=3072, heads=12, layers=12, d_embedding=128),
        "large": dict(d_model=1024, d_ff=4096, heads=16, layers=24, d_embedding=128),
        "xlarge": dict(d_model=2048, d_ff=8192, heads=16, layers=24, d_embedding=128),
        "xxlarge": dict(d_model=4096, d_ff=16384, heads=64, layers=12, d_embedding=128),
    }
    block = AlbertBlock
    head_kinds = ("pooler", "masked_lm", "sentence_order", *task_heads.TASK_HEADS)
    pooled = ("pooler", "sentence_order", "classes", "multiple_choice")

    def __init__(self, config: AlbertConfig):
        if config.layers % config.layers_per_group:
            raise ConfigError(
                f"`layers` must be a multiple of `layers_per_group` ({config.layers_per_group}), "
                f"but is {config.layers}."
            )
        super().__init__(config)
        self.project = Linear(config.d_embedding, config.d_model)
        task_heads.init_weights(self.project, config.init_range)
        self.block_of_layer = config.block_of_layer
        uses = Counter(self.block_of_layer)
        for number, block in enumerate(self.blocks):
            cast(AlbertBlock, block).attention.capture.uses = uses[number]

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        hidden = self.embed(batch)
        yield hidden
        mask = batch.padding_mask()
        for number in self.block_of_layer[:-1]:
            hidden = self.blocks[number](hidden, mask)
            yield hidden
        for number in self.block_of_layer[-1:]:  # the last layer computes only `tokens`
            yield self.blocks[number](hidden, mask, tokens)

    def embed(self, batch: Sequences) -> Tensor:
        """Token + position + segment, as wide as the model: (B, T, D) or (1, N, D)."""
        return self.project(super().embed(batch))

    def _head(self, kind: str, outputs: int) -> nn.Module:
        if kind == "sentence_order":
            return task_heads.dense_head(
                self.config.d_model, 2, "tanh", dropout=self.config.head_dropout
            )
        return super()._head(kind, outputs)
