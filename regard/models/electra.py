"""ELECTRA: "Pre-training Text Encoders as Discriminators" (Clark et al. 2020).

    ids -> embed + positions + segments -> norm -> project -> L x [self-attention, feed-forward]

A small generator fills masks, and the discriminator tells for every token whether it is the
original one. Both are BERT's network, with embeddings that may be narrower than the model; the
discriminator is what is fine-tuned. There is no pooler.

In pre-training both read the same embeddings, and what the generator draws has no gradient:

    text            the chef cooked the meal
    generator       the [MASK] [MASK] the meal  ->  p(token) at each mask  ->  drawn: chef, ate
    discriminator   the chef ate the meal       ->  for each token p(replaced), here 0 0 1 0 0
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.layers import task_heads
from regard.layers.linear import Linear
from regard.layers.softmax import slice_on
from regard.models.bert import Bert, BertConfig, masked_lm_head
from regard.models.config import Activation, Probability, Size
from regard.models.encoder_with_heads import EncoderWithHeads


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


class Electra(Bert):
    """ELECTRA: "Pre-training Text Encoders as Discriminators" (Clark et al. 2020).

    ELECTRA without a head, generator or discriminator, an `Encoder`.
    """

    Config = ElectraConfig
    SIZES = {
        "small": dict(d_model=256, d_ff=1024, heads=4, layers=12, d_embedding=128),
        "base": dict(d_model=768, d_ff=3072, heads=12, layers=12, d_embedding=768),
        "large": dict(d_model=1024, d_ff=4096, heads=16, layers=24, d_embedding=1024),
    }
    head_kinds = ("replaced", "masked_lm", *task_heads.TASK_HEADS)
    pooled = ()

    def __init__(self, config: ElectraConfig):
        super().__init__(config)
        projected = config.d_embedding != config.d_model
        self.project = Linear(config.d_embedding, config.d_model) if projected else nn.Identity()
        task_heads.init_weights(self.project, config.init_range)

    def embed(self, batch: Sequences) -> Tensor:
        """Token + position + segment, as wide as the model: (B, T, D) or (1, N, D)."""
        return self.project(super().embed(batch))

    def _head(self, kind: str, outputs: int) -> nn.Module:
        config = self.config
        width, dropout = config.d_model, config.dropout_of_heads
        match kind:
            case "replaced":
                inner = task_heads.DenseActivation(width, config.activation)
                return task_heads.ClassificationHead(
                    width, 1, pooling=task_heads.every_token, inner=inner
                )
            case "masked_lm":  # gelu, whatever the layers have
                return masked_lm_head(self.embedding, config, "gelu")
            case "classes":
                return task_heads.dense_head(
                    width, outputs, "gelu", inner_dropout=dropout, dropout=dropout
                )
            case "multiple_choice":
                activation, dropout = config.choice_activation, config.choice_dropout
                return task_heads.dense_head(width, outputs, activation, dropout=dropout)
            case _:
                return super()._head(kind, outputs)


ROWS = 128  # the fewest rows of a slice of probabilities


class GeneratorAndDiscriminator(EncoderWithHeads):
    """A discriminator, used like any `EncoderWithHeads`, and the generator it is trained with.

    They share the embeddings, but not the projections of these to the widths of the models.

    generator: an encoder with the head "masked_lm".
    """

    def __init__(self, discriminator: EncoderWithHeads, config: ElectraConfig):
        super().__init__(discriminator.encoder, dict(discriminator.heads.items()))
        self.labels, self.architecture = discriminator.labels, discriminator.architecture
        ours: Any = discriminator.encoder
        encoder = type(ours)(config)
        encoder.embedding, encoder.positions = ours.embedding, ours.positions
        encoder.segments, encoder.norm = ours.segments, ours.norm
        self.generator = EncoderWithHeads(encoder, {"masked_lm": encoder.new_head("masked_lm")})
        self.generator.to(self._device())

    @property
    def deployed(self) -> EncoderWithHeads:
        """The discriminator."""
        discriminator = EncoderWithHeads(self.encoder, dict(self.heads.items())).train(
            self.training
        )
        discriminator.labels, discriminator.architecture = self.labels, self.architecture
        return discriminator

    def new_like(self) -> GeneratorAndDiscriminator:
        return GeneratorAndDiscriminator(super().new_like(), self.generator.config)

    @torch.no_grad()
    def draw(self, hidden: Tensor, random: torch.Generator | None = None) -> Tensor:
        """Tokens from the generator's probabilities, for its hidden states (N, D): (N,).

        random: None: torch's own generator.
        """
        head = self.generator.masked_lm
        rows = max(slice_on(hidden.device) // self.config.vocab_size, ROWS)
        probs = (head.logits(part).float().softmax(-1) for part in hidden.split(rows))
        return torch.cat([torch.multinomial(p, 1, generator=random)[:, 0] for p in probs])


def generator_config(config: ElectraConfig, size: float) -> ElectraConfig:
    """Of the generator for a discriminator of this configuration (section 3.2, table 6).

    Args:
        size: the share of the discriminator's width, feed-forward width and heads.

    Raises:
        ConfigError: its heads do not divide its width.
    """
    width, heads = max(1, int(config.d_model * size)), max(1, int(config.heads * size))
    if width % heads:
        raise ConfigError(
            f"[objective] `generator_size` = {size:g} of a model with `d_model` {config.d_model} "
            f"and {config.heads} heads is a width of {width} with {heads} heads, which do not "
            "divide it. Choose another size."
        )
    d_ff = max(1, int(config.d_ff * size))
    return replace(config, d_model=width, d_ff=d_ff, heads=heads)
