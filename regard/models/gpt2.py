"""GPT-2: "Language Models are Unsupervised Multitask Learners" (Radford et al. 2019).

    ids -> embed + positions -> L x [norm, masked self-attention; norm, feed-forward] -> norm

GPT with the layer norm before each sub-layer and one more at the end, and with smaller weights at
the start where a sub-layer writes into the residual sum (section 2.3).
"""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard.attention.attend import SCALED
from regard.attention.cache import KeyValueCache
from regard.attention.multihead import LayerCache, SelfAttention
from regard.attention.pruning import Pruned
from regard.attention.relative_protocol import Relation
from regard.attention.scores import Dot
from regard.data.batches import Sequences
from regard.data.layout import ALL, TokenSubset
from regard.layers.dropout import Dropout
from regard.layers.feedforward import FeedForward
from regard.models.config import (
    Activation,
    Epsilon,
    InitScale,
    Positions,
    Probability,
    Size,
    TokenId,
)
from regard.models.gpt import GPT, OutputKind
from regard.models.protocols import States
from regard.ops import KeyMask


@dataclass(frozen=True)
class GPT2Config:
    """The defaults are the smallest model.

    d_ff: width inside the feed-forward layers; None: four times `d_model`.
    head_dropout: dropout of the "tags" head; None: 0.1. The others have none,
        and `choice_dropout` is that of the "multiple_choice" head.
    scaled: scores are divided by sqrt(K); scaled_by_layer: and by the number of the layer, from 1.

    The others are those of `GPTConfig`.
    """

    vocab_size: Size
    d_model: Size = 768
    d_ff: Size | None = None
    heads: Size = 12
    layers: Size = 12
    max_length: Size = 1024
    positions: Positions = "learned"
    clip_distance: Size | None = None
    activation: Activation = "gelu-tanh"
    dropout: Probability = 0.1  # after each sub-layer
    embedding_dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    head_dropout: Probability | None = None
    choice_dropout: Probability = 0.1
    choice_activation: Activation | None = None
    norm_eps: Epsilon = 1e-5
    init_range: InitScale = 0.02  # standard deviation of the initial matrices
    scaled: bool = True
    scaled_by_layer: bool = False
    output: OutputKind = "tied"
    pad: TokenId | None = None
    bos: TokenId | None = None
    eos: TokenId | None = None
    pruned: Pruned = ()

    @property
    def tied(self) -> bool:
        """Whether the output layer uses the matrix of the embedding."""
        return self.output == "tied"


SIZES = {
    "124M": dict(d_model=768, heads=12, layers=12),
    "355M": dict(d_model=1024, heads=16, layers=24),
    "774M": dict(d_model=1280, heads=20, layers=36),
    "1558M": dict(d_model=1600, heads=25, layers=48),
}


def _printed(parameters: float, exact: int) -> dict[str, tuple[float, str]]:
    source = (
        "Radford et al. 2019, table 2; its four figures are those of a vocabulary of 40,478 "
        "tokens, which was GPT's. With GPT-2's own 50,257 tokens the parameters are "
        f"{exact:,}"
    )
    return {"parameters": (parameters, source)}


PUBLISHED = {
    "124M": _printed(117e6, 124_439_808),
    "355M": _printed(345e6, 354_823_168),
    "774M": _printed(762e6, 774_030_080),
    "1558M": _printed(1542e6, 1_557_611_200),
}


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
    """GPT-2, a `LanguageModel` and an `Encoder`."""

    Config: type = GPT2Config
    SIZES = SIZES
    PUBLISHED: dict[str, Any] = PUBLISHED
    block: Any = GPT2Block

    def __init__(self, config: GPT2Config):
        super().__init__(config)
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        # Each of the 2 L sub-layers adds to the residual sum, whose variance must not grow with L.
        deviation = config.init_range / math.sqrt(2 * config.layers)
        for block in self.blocks:
            nn.init.normal_(block.attention.output.weight, std=deviation)
            nn.init.normal_(block.feed.outer.weight, std=deviation)

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        """The last layer includes the final norm."""
        hidden = self.embed(batch)
        yield hidden
        mask, relations = batch.causal_mask(), self.relations.of(batch)
        *inner, last = self.blocks
        for block, relation in zip(inner, relations, strict=False):
            hidden = block(hidden, mask, relation=relation)
            yield hidden
        yield self.norm(last(hidden, mask, relation=relations[-1], tokens=tokens))

    def continued(self, ids: Tensor, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """Hidden states (B, T, D) of the ids (B, T) that follow a state, and the next state."""
        hidden, state = super().continued(ids, state)
        return self.norm(hidden), state

    @property
    def tags_dropout(self) -> float:
        return 0.1 if self.config.head_dropout is None else self.config.head_dropout
