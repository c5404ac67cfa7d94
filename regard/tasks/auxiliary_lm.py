"""The auxiliary objective of fine-tuning: predicting the next token (Radford et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.data import Sequences
from regard.errors import ConfigError
from regard.models.encoder_with_heads import EncoderWithHeads


@dataclass(frozen=True)
class AuxiliaryLM:
    """The auxiliary objective of fine-tuning: lambda L_1 of equation 5 (Radford et al. 2018).

    head: the model's own over the vocabulary.  weight: lambda, included in the reported loss.
    """

    head: Any
    weight: float

    @classmethod
    def of(cls, model: EncoderWithHeads, weight: float) -> AuxiliaryLM | None:
        """The objective of a model; None where the weight is 0.

        Raises:
            ConfigError: the model does not predict the next token.
        """
        if not weight:
            return None
        encoder: Any = model.encoder
        if not encoder.is_causal:
            raise ConfigError(
                "[objective] `aux_lm_weight` needs a model that predicts the next token, such "
                f"as gpt2, but {type(encoder).__name__} does not. Leave it out."
            )
        any_state = next(encoder.parameters()).new_zeros(1, encoder.config.d_model)
        encoder.head.logits(any_state)  # raises an error without a head
        return cls(encoder.head, weight)

    @staticmethod
    def count(texts: Sequences) -> int:
        """The predicted tokens: all but the first of each sequence."""
        return int((texts.lengths - 1).clamp(min=0).sum())

    def loss(
        self, hidden: Tensor, texts: Sequences, count: int | None = None
    ) -> tuple[Tensor, int]:
        """The weighted sum of -log p(next token) in nats, and the number of predicted tokens.

        count: of these tokens, where it is known.
        """
        targets = texts.next_ids().flatten()
        total, counted = self.head.loss(hidden.flatten(0, 1), targets, count=count)
        return self.weight * total, counted
