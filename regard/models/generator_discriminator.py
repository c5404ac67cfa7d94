"""ELECTRA in pre-training: a generator and a discriminator with common embeddings.

    text            the chef cooked the meal
    generator       the [MASK] [MASK] the meal  ->  p(token) at each mask  ->  drawn: chef, ate
    discriminator   the chef ate the meal       ->  for each token p(replaced), here 0 0 1 0 0

Clark et al. 2020, sections 2 and 3.2: the generator is the same network, but smaller, and both read
the same embeddings. What it draws has no gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.layers.softmax import slice_on
from regard.models.electra import ElectraConfig
from regard.models.encoder_with_heads import EncoderWithHeads

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


def generator_config(config: ElectraConfig, size: float, layers: int | None) -> ElectraConfig:
    """Of the generator for a discriminator of this configuration (section 3.2, table 6).

    Args:
        size: the share of the discriminator's width, feed-forward width and heads.
        layers: None: as many as the discriminator has.

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
    return replace(config, d_model=width, d_ff=d_ff, heads=heads, layers=layers or config.layers)
