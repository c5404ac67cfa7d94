"""GPT (Radford et al. 2018) and GPT-2 (Radford et al. 2019)."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.attention.attend import SCALED, Dot, Relation
from regard.attention.cache import KeyValueCache
from regard.attention.multihead import LayerCache, SelfAttention
from regard.attention.pruning import Prunable, Pruned, prune_as_configured
from regard.attention.relative import absolute_positions, reads_unpadded, relative_positions
from regard.data.batches import ALL, Sequences, TokenSubset
from regard.errors import ConfigError
from regard.layers import task_heads
from regard.layers.dropout import Dropout
from regard.layers.feedforward import FeedForward, activation_of
from regard.layers.softmax import Softmax
from regard.models.config import (
    Activation,
    Epsilon,
    InitScale,
    Positions,
    Probability,
    Size,
    TokenId,
)
from regard.models.protocols import CachedLanguageModel, Encoder, Output, States
from regard.ops import KeyMask, state_prototype
from regard.text.templates import Template

# ---------------------------------------------------------------------------------------------- GPT
#
#     ids -> embed + positions -> L x [masked self-attention, feed-forward] -> hidden -> softmax
#
# The decoder of the Transformer without cross-attention, with learned positions and gelu; a layer
# norm follows each sub-layer. It predicts the next token of a text. It is an encoder too: heads for
# tasks read the hidden state of the last token, which has attended to the whole text (section 3.2).


OutputKind = Literal["tied", "own", "none"]


@dataclass(frozen=True)
class GPTConfig:
    """The defaults are the model of the paper. The inner layer is four times as wide as the model.

    output: the output layer: "tied" to the embedding, a matrix of its "own", or "none", in a model
        that is only an encoder.
    positions: one of the kinds of `regard.models.config`; the paper's are learned.
    clip_distance: distances beyond it share a vector (kind "shaw");
        None: 16.
    choice_dropout, choice_activation: those of the "multiple_choice" head.
    pad, bos, eos: None where the vocabulary has no such token.
    pruned: heads that were pruned, as `regard.attention.pruning.prune_heads` records them.
    """

    vocab_size: Size
    d_model: Size = 768
    heads: Size = 12
    layers: Size = 12
    max_length: Size = 512
    positions: Positions = "learned"
    clip_distance: Size | None = None
    activation: Activation = "gelu-tanh"
    dropout: Probability = 0.1  # after each sub-layer
    embedding_dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    choice_dropout: Probability = 0.1
    choice_activation: Activation | None = None
    norm_eps: Epsilon = 1e-5
    init_range: InitScale = 0.02  # standard deviation of the initial matrices
    output: OutputKind = "tied"
    pad: TokenId | None = None
    bos: TokenId | None = None
    eos: TokenId | None = None
    pruned: Pruned = ()

    @property
    def tied(self) -> bool:
        """Whether the output layer uses the matrix of the embedding."""
        return self.output == "tied"


class GPTBlock(nn.Module):
    """x = norm(x + attend(x)); x = norm(x + feed(x))"""

    def __init__(self, config: Any, layer: int):
        super().__init__()
        width = config.d_model
        self.attention = SelfAttention(
            width, config.heads, kind="decoder", dropout=config.attention_dropout
        )
        self.attention_norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.feed = FeedForward(width, 4 * width, activation=config.activation)
        self.feed_norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask,
        *,
        relation: Relation | None = None,
        cache: LayerCache | None = None,
        tokens: TokenSubset = ALL,
    ) -> Tensor:
        attended = self.attention(hidden, mask, relation=relation, cache=cache, tokens=tokens)
        hidden = self.attention_norm(tokens.of(hidden) + self.dropout(attended))
        return self.feed_norm(hidden + self.dropout(self.feed(hidden)))


class GPT(nn.Module, CachedLanguageModel, Encoder, Prunable):
    """GPT: "Improving Language Understanding by Generative Pre-Training" (Radford et al. 2018).

    GPT, a `LanguageModel` and an `Encoder`.
    """

    Config: type = GPTConfig
    SIZES = {"base": dict(d_model=768, heads=12, layers=12, max_length=512)}
    unpadded = True
    reads_both_ways = True
    block: Any = GPTBlock

    def __init__(self, config: Any):
        super().__init__()
        self.config = config
        self.embedding: Any = self.new_embedding(config)
        self.positions = absolute_positions(config)
        self.relations = relative_positions(config, config.layers, causal=True)
        self.unpadded = reads_unpadded(config)
        self.dropout = Dropout(config.embedding_dropout)
        self.blocks: Any = nn.ModuleList(self.block(config, n) for n in range(config.layers))
        task_heads.init_weights(self, config.init_range)
        prune_as_configured(self, config.pruned)
        self.head: Any = self.new_output(config)

    def new_embedding(self, config: Any) -> nn.Module:
        """ids (...,) -> (..., D)"""
        return nn.Embedding(config.vocab_size, config.d_model)

    def new_output(self, config: Any) -> nn.Module:
        """The output layer over the vocabulary."""
        if config.output == "none":
            return NoLMHead()
        tied = self.embedding if config.output == "tied" else None
        head = Softmax(config.d_model, config.vocab_size, tied=tied, bias=False)
        if tied is None:
            nn.init.normal_(head.weight, std=config.init_range)
        return head

    # ---- an encoder

    @property
    def is_causal(self) -> bool:
        return True

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        """The last layer includes `finish`."""
        hidden = self.embed(batch)
        yield hidden
        masks, relations = self.masks_of(batch), self.relations.of(batch)
        *inner, last = self.blocks
        for block, mask, relation in zip(inner, masks, relations, strict=False):
            hidden = block(hidden, mask, relation=relation)
            yield hidden
        yield self.finish(last(hidden, masks[-1], relation=relations[-1], tokens=tokens))

    def masks_of(self, batch: Sequences) -> list[KeyMask]:
        """The mask of each layer for whole texts."""
        return [batch.causal_mask()] * self.config.layers

    def masks_after(self, cache: KeyValueCache, count: int) -> list[KeyMask]:
        """The mask of each layer for the next `count` tokens."""
        return [cache.mask(count)] * self.config.layers

    def finish(self, hidden: Tensor) -> Tensor:
        """The part after the last block, (B, T, D), same: here nothing."""
        return hidden

    def embed(self, batch: Sequences) -> Tensor:
        """Token + position, (B, T, D) or (1, N, D). A segment is a token id, whose embedding is
        added too.
        """
        summed = self.embedding(batch.ids) + self.positions.of(batch)
        if batch.segments is not None:
            summed = summed + self.embedding(batch.segments)
        return self.dropout(summed)

    # ---- a language model

    def forward(self, ids: Tensor, state: KeyValueCache | None = None) -> Output:
        """Hidden states (B, T, D) that predict the token after each of the ids (B, T).

        With a state, the ids follow the tokens of the state, and the output has the next state.
        """
        if state is None:
            return Output(self.encode(Sequences.full(ids)))
        return Output(*self.continued(ids, state))

    def continued(self, ids: Tensor, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """Hidden states (B, T, D) of the ids (B, T) that follow a state, and the next state."""
        state.consume()
        count = ids.size(1)
        cache = state.reserve(count)
        hidden = self.dropout(self.embedding(ids) + self.positions.after(cache, count))
        masks, relations = self.masks_after(cache, count), self.relations.after(cache, count)
        for n, block in enumerate(self.blocks):
            hidden = block(hidden, masks[n], relation=relations[n], cache=cache.layer(n))
        return self.finish(hidden), cache.advance(count)

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> KeyValueCache:
        """A cache without any position."""
        # The norms are not quantized: they have the type in which the model computes.
        config, weight = self.config, self.blocks[0].attention_norm.weight
        like = state_prototype(weight, dtype)
        head_dim = config.d_model // config.heads
        return KeyValueCache.empty(sequences, config.layers, config.heads, head_dim, like=like)

    # ---- heads and texts

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        config, width = self.config, self.config.d_model
        head: nn.Module
        match kind:
            case "classes":
                pooling = task_heads.LastToken(skip=config.pad)
                head = task_heads.ClassificationHead(width, outputs, pooling=pooling, bias=False)
            case "multiple_choice":
                head = ChoiceHead(width, config.choice_activation, config.choice_dropout)
            case _:
                head = task_heads.token_head(self, kind, outputs, dropout=self.tags_dropout)
        return task_heads.init_weights(head, config.init_range)

    @property
    def tags_dropout(self) -> float:
        """The dropout of a "tags" head; the published GPT has no such head."""
        return self.config.dropout

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """start A extract, and start A delimiter B extract (section 3.3).

        They are the tokens with the roles bos, sep and cls. A tokenizer without one of them, such
        as the published ones, adds no special tokens.
        """
        special = (tokenizer.bos_id, tokenizer.sep_id, tokenizer.cls_id)
        if None in special:
            return Template.around((), (), ())
        return Template.around(*((token,) for token in special))


class ChoiceHead(task_heads.ClassificationHead):
    """The score of a candidate answer, at its last token: a(W drop(h) + b)."""

    def __init__(self, d_model: int, activation: str | None, dropout: float):
        super().__init__(d_model, 1, pooling=task_heads.last_token, dropout=dropout)
        self.activation = activation_of(activation or "linear")

    def scores(self, read: Tensor) -> Tensor:
        """(..., D) -> (..., 1)"""
        return self.activation(super().scores(read))


class NoLMHead(nn.Module):
    """A null head, of models without a language-modeling head."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Raise an error: there are no weights for it."""
        raise ConfigError(
            "This model has no output over words: its weights came without one, and they are not "
            "tied to the embedding. It can encode texts, but not continue them."
        )

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """Raise an error: there are no weights for it."""
        raise AssertionError(self.logits(hidden))


# -------------------------------------------------------------------------------------------- GPT-2
#
#     ids -> embed + positions -> L x [norm, masked self-attention; norm, feed-forward] -> norm
#
# GPT with the layer norm before each sub-layer and one more at the end, and with smaller weights at
# the start where a sub-layer writes into the residual sum (section 2.3).


@dataclass(frozen=True)
class GPT2Config(GPTConfig):
    """The defaults are the smallest model.

    d_ff: width inside the feed-forward layers; None: four times `d_model`.
    head_dropout: dropout of the "tags" head; None: 0.1. The others have none,
        and `choice_dropout` is that of the "multiple_choice" head.
    scaled: scores are divided by sqrt(K); scaled_by_layer: and by the number of the layer, from 1.

    The others are those of `GPTConfig`.
    """

    d_ff: Size | None = None
    max_length: Size = 1024
    head_dropout: Probability | None = None
    scaled: bool = True
    scaled_by_layer: bool = False


class GPT2Block(nn.Module):
    """x = x + attend(norm(x)); x = x + feed(norm(x))"""

    def __init__(self, config: GPT2Config, layer: int):
        super().__init__()
        width, inner = config.d_model, config.d_ff or 4 * config.d_model
        self.attention_norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.attention = SelfAttention(
            width,
            config.heads,
            kind="decoder",
            dropout=config.attention_dropout,
            score=score_of(config, layer),
        )
        self.feed_norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.feed = FeedForward(width, inner, activation=config.activation)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask,
        *,
        relation: Relation | None = None,
        cache: LayerCache | None = None,
        tokens: TokenSubset = ALL,
    ) -> Tensor:
        normed = self.attention_norm(hidden)
        attended = self.attention(normed, mask, relation=relation, cache=cache, tokens=tokens)
        hidden = tokens.of(hidden) + self.dropout(attended)
        return hidden + self.dropout(self.feed(self.feed_norm(hidden)))


def score_of(config: GPT2Config, layer: int) -> Dot:
    """The dot-product score of a layer (from 0)."""
    if config.scaled and not config.scaled_by_layer:
        return SCALED
    scale = (config.d_model // config.heads) ** -0.5 if config.scaled else 1.0
    return Dot(scale / (layer + 1) if config.scaled_by_layer else scale)


class GPT2(GPT):
    """GPT-2: "Language Models are Unsupervised Multitask Learners" (Radford et al. 2019).

    GPT-2, a `LanguageModel` and an `Encoder`.
    """

    Config: type = GPT2Config
    SIZES = {
        "124M": dict(d_model=768, heads=12, layers=12),
        "355M": dict(d_model=1024, heads=16, layers=24),
        "774M": dict(d_model=1280, heads=20, layers=36),
        "1558M": dict(d_model=1600, heads=25, layers=48),
    }
    block: Any = GPT2Block

    def __init__(self, config: GPT2Config):
        super().__init__(config)
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        # Each of the 2 L sub-layers adds to the residual sum, whose variance must not grow with L.
        deviation = config.init_range / math.sqrt(2 * config.layers)
        for block in self.blocks:
            nn.init.normal_(block.attention.output.weight, std=deviation)
            nn.init.normal_(block.feed.outer.weight, std=deviation)

    def finish(self, hidden: Tensor) -> Tensor:
        """The final norm: (B, T, D), same."""
        return self.norm(hidden)

    @property
    def tags_dropout(self) -> float:
        return 0.1 if self.config.head_dropout is None else self.config.head_dropout
