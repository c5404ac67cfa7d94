"""An encoder whose hidden states come from calls of the compiled kernels.

The model's own code runs, on the same weights, where attention is captured, heads are gated, in
training, and where something has no compiled form.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor

from regard.data.batches import Sequences
from regard.data.layout import ALL, FirstTokens, TokenSubset
from regard.kernels.compiled_decoder import CompiledGenerator
from regard.kernels.compiled_texts import CompiledTexts
from regard.layers.scalar_mix import LayerChoice, SingleLayer
from regard.models.protocols import Encoder, LanguageModel, States
from regard.models.wrappers import EncoderWrapper

LAST = SingleLayer(-1)


def compiled_encoder(model: Encoder) -> Encoder:
    """An encoder around a quantized model."""
    causal = isinstance(model, LanguageModel)
    return CausalEncoder(model) if causal else CompiledEncoder(model)


class CausalEncoder(EncoderWrapper):
    """Around a language model, in which each token sees those before it."""

    @property
    def unpadded(self) -> bool:  # type: ignore[override]
        """No: the kernels take the padding out of a padded batch."""
        return False

    def encode(self, batch: Sequences, tokens: TokenSubset = ALL) -> Tensor:
        hidden = None
        if batch.layout is None and batch.segments is None:
            hidden = CompiledGenerator(cast(LanguageModel, self.model)).whole_texts(batch.ids)
        return self.model.encode(batch, tokens) if hidden is None else tokens.of(hidden)


class CompiledEncoder(EncoderWrapper):
    """Around a model in which each token sees its whole text; what stands at padding is zero."""

    def __init__(self, model: Encoder):
        super().__init__(model)
        self.texts = CompiledTexts(model, "states")

    @property
    def unpadded(self) -> bool:  # type: ignore[override]
        """No: the kernels take the padding out of a padded batch."""
        return False

    @property
    def tokens_per_pass(self) -> int:  # type: ignore[override]
        """More than of the model: the kernels themselves keep together what stays in caches."""
        return 4096

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        compiled = self.texts.each(batch) if tokens is ALL else None
        if compiled is None:
            yield from self.model.states(batch, tokens)
            return
        flat, states = compiled
        for layer in states:
            yield flat.padded(layer)

    def encode(self, batch: Sequences, tokens: TokenSubset = ALL) -> Tensor:
        hidden = None
        if tokens is ALL:
            hidden = self.texts.last(batch)
        elif isinstance(tokens, FirstTokens):
            hidden = self.texts.first(batch)
        return self.model.encode(batch, tokens) if hidden is None else hidden

    def chosen(self, batch: Sequences, choice: LayerChoice) -> Tensor:
        if choice == LAST:
            hidden = self.texts.last(batch)
            return self.model.chosen(batch, choice) if hidden is None else hidden[batch.keep]
        layers = self.texts.each(batch)
        return self.model.chosen(batch, choice) if layers is None else choice(layers[1])
