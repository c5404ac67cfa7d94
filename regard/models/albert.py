"""ALBERT: "A Lite BERT for Self-supervised Learning of Language Representations" (Lan et al. 2020).

    ids -> embed + positions + segments -> norm -> project -> L x [self-attention, feed-forward]

BERT with few parameters: all layers of a group are the same layer, and embeddings of a smaller
width are projected to `d_model`. Beside masked words it learned whether two parts of a text stand
in their order. There is no dropout after the feed-forward network.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal, cast

from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.data.layout import ALL, TokenSubset
from regard.errors import ConfigError
from regard.layers.dropout import AddNorm
from regard.layers.linear import Linear
from regard.layers.task_heads import ClassificationHead, DenseActivation, first_token
from regard.models.bert import Bert, BertBlock, BertConfig
from regard.models.config import Activation, Probability, Size
from regard.models.parts import TASK_HEADS, init_weights, no_head
from regard.models.protocols import States


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


SIZES = {
    "base": dict(d_model=768, d_ff=3072, heads=12, layers=12, d_embedding=128),
    "large": dict(d_model=1024, d_ff=4096, heads=16, layers=24, d_embedding=128),
    "xlarge": dict(d_model=2048, d_ff=8192, heads=16, layers=24, d_embedding=128),
    "xxlarge": dict(d_model=4096, d_ff=16384, heads=64, layers=12, d_embedding=128),
}

_PARAMETERS = (
    "Lan et al. 2020, table 1, rounded; with 30,000 tokens the encoder and its pooler have {:,}"
)
PUBLISHED = {
    "base": {"parameters": (12e6, _PARAMETERS.format(11_683_584))},
    "large": {"parameters": (18e6, _PARAMETERS.format(17_683_968))},
    "xlarge": {"parameters": (60e6, _PARAMETERS.format(58_724_864))},
    "xxlarge": {"parameters": (235e6, _PARAMETERS.format(222_595_584))},
}


class AlbertBlock(BertBlock):
    """x = norm(x + drop(attend(x))); x = norm(x + feed(x))"""

    def __init__(self, config: AlbertConfig):
        super().__init__(config)
        self.feed_norm = AddNorm(config.d_model, eps=config.norm_eps)


class Albert(Bert):
    """ALBERT without a head, an `Encoder`.

    Raises:
        ConfigError: `layers` is not a multiple of `layers_per_group`.
    """

    Config = AlbertConfig
    SIZES = SIZES
    PUBLISHED = PUBLISHED
    block = AlbertBlock
    pooled = ("pooler", "sentence_order", "classes", "multiple_choice")

    def __init__(self, config: AlbertConfig):
        if config.layers % config.layers_per_group:
            raise ConfigError(
                f"`layers` must be a multiple of `layers_per_group` ({config.layers_per_group}), "
                f"but is {config.layers}."
            )
        super().__init__(config)
        self.project = Linear(config.d_embedding, config.d_model)
        init_weights(self.project, config.init_range)
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

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        config = self.config
        match kind:
            case "sentence_order":
                inner = DenseActivation(config.d_model, "tanh")
                head = ClassificationHead(
                    config.d_model, 2, pooling=first_token, inner=inner, dropout=config.head_dropout
                )
                return init_weights(head, config.init_range)
            case "pooler" | "masked_lm" | "classes" | "multiple_choice" | "tags" | "span":
                return super().new_head(kind, outputs)
            case _:
                raise no_head(self, kind, ("pooler", "masked_lm", "sentence_order", *TASK_HEADS))
