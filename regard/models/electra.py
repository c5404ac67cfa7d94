"""ELECTRA: "Pre-training Text Encoders as Discriminators" (Clark et al. 2020).

    ids -> embed + positions + segments -> norm -> project -> L x [self-attention, feed-forward]

A small generator fills masks, and the discriminator tells for every token whether it is the
original one. Both are BERT's network, with embeddings that may be narrower than the model; the
discriminator is what is fine-tuned. There is no pooler.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.layers.linear import Linear
from regard.layers.task_heads import (
    ClassificationHead,
    DenseActivation,
    MaskedLMHead,
    every_token,
    first_token,
)
from regard.models.bert import Bert, BertConfig, softmax_over
from regard.models.config import Activation, Probability, Size
from regard.models.init import TASK_HEADS, init_weights, no_head


@dataclass(frozen=True)
class ElectraConfig(BertConfig):
    """The defaults are the small model.

    d_embedding: the width of the embeddings.
    head_dropout: dropout of the heads "classes" and "tags"; None: `dropout`.
    choice_activation: activation function of the head "multiple_choice".
    choice_dropout: dropout of the head "multiple_choice".
    """

    d_model: Size = 256
    d_ff: Size = 1024
    heads: Size = 4
    d_embedding: Size = 128
    choice_activation: Activation = "gelu"
    choice_dropout: Probability = 0.1


SIZES = {
    "small": dict(d_model=256, d_ff=1024, heads=4, layers=12, d_embedding=128),
    "base": dict(d_model=768, d_ff=3072, heads=12, layers=12, d_embedding=768),
    "large": dict(d_model=1024, d_ff=4096, heads=16, layers=24, d_embedding=1024),
}

_PARAMETERS = (
    "Clark et al. 2020, tables 1 and 2, rounded; with the 30,522 uncased tokens of BERT the "
    "encoder has {:,}"
)
PUBLISHED = {
    "small": {"parameters": (14e6, _PARAMETERS.format(13_483_008))},
    "base": {"parameters": (110e6, _PARAMETERS.format(108_891_648))},
    "large": {"parameters": (335e6, _PARAMETERS.format(334_092_288))},
}


class Electra(Bert):
    """ELECTRA without a head, generator or discriminator, an `Encoder`."""

    Config = ElectraConfig
    SIZES = SIZES
    PUBLISHED = PUBLISHED
    pooled = ()

    def __init__(self, config: ElectraConfig):
        super().__init__(config)
        projected = config.d_embedding != config.d_model
        self.project = Linear(config.d_embedding, config.d_model) if projected else nn.Identity()
        init_weights(self.project, config.init_range)

    def embed(self, batch: Sequences) -> Tensor:
        """Token + position + segment, as wide as the model: (B, T, D) or (1, N, D)."""
        return self.project(super().embed(batch))

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head: "replaced", "masked_lm", or one of those that every encoder has.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        config = self.config
        width, dropout = config.d_model, config.head_dropout
        dropout = config.dropout if dropout is None else dropout
        head: nn.Module
        match kind:
            case "replaced":
                inner = DenseActivation(width, config.activation)
                head = ClassificationHead(width, 1, pooling=every_token, inner=inner)
            case "masked_lm":  # gelu, whatever the layers have
                softmax = softmax_over(self.embedding, config)
                head = MaskedLMHead(width, "gelu", config.norm_eps, softmax)
            case "classes":
                inner = DenseActivation(width, "gelu", dropout)
                head = ClassificationHead(
                    width, outputs, pooling=first_token, inner=inner, dropout=dropout
                )
            case "multiple_choice":
                inner = DenseActivation(width, config.choice_activation)
                head = ClassificationHead(
                    width, outputs, pooling=first_token, inner=inner, dropout=config.choice_dropout
                )
            case "tags" | "span":
                return super().new_head(kind, outputs)
            case _:
                raise no_head(self, kind, ("replaced", "masked_lm", *TASK_HEADS))
        return init_weights(head, config.init_range)
