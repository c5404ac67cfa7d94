"""Losses of language models beside the cross-entropy: [objective] of language modeling.

Each reads what the model's `Output` has for it. A further one is a class with these three members,
and an option of the section.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from pydantic import Field
from torch import Tensor

from regard.data.batches import StreamBatch
from regard.errors import ConfigError
from regard.models.protocols import LanguageModel, Output
from regard.recipe import Options


class AuxiliaryLoss(Protocol):
    """A loss that is added to the mean cross-entropy of the next tokens.

    name: of the loss, in metrics.jsonl.
    extra: the name of the auxiliary of `Output` that it reads; "" for none.
    """

    @property
    def name(self) -> str: ...
    @property
    def extra(self) -> str: ...

    def count(self, batch: StreamBatch) -> int:
        """How many items it sums over, known before anything is computed."""
        ...

    def total(self, output: Output) -> Tensor:
        """The sum over these items, times the weight of the loss: ()."""
        ...


@dataclass(frozen=True)
class ActivationRegularization:
    """alpha * mean(h^2) of the hidden states that the output reads (Merity et al. 2018, 4.6)."""

    weight: float
    name: str = "activation"
    extra: str = ""

    def count(self, batch: StreamBatch) -> int:
        """Hidden states, B T."""
        return batch.tokens.numel()

    def total(self, output: Output) -> Tensor:
        return self.weight * output.hidden.float().square().mean(-1).sum()


@dataclass(frozen=True)
class TemporalActivationRegularization:
    """beta * mean((h_t - h_t+1)^2) of the hidden states before the output's dropout, in a batch."""

    weight: float
    name: str = "temporal_activation"
    extra: str = "undropped"

    def count(self, batch: StreamBatch) -> int:
        """Differences, B (T - 1)."""
        return batch.tokens.size(0) * (batch.tokens.size(1) - 1)

    def total(self, output: Output) -> Tensor:
        return self.weight * output.extras[self.extra].float().diff(dim=1).square().mean(-1).sum()


@dataclass(frozen=True)
class ReconstructionLoss:
    """What attention loses where positions are compressed, from which the compression learns.

    Rae et al. 2019, section 3.2. The weights of the prediction get no gradient from it, so that it
    has no weight to be chosen.
    """

    name: str = "reconstruction"
    extra: str = "reconstruction"

    def count(self, batch: StreamBatch) -> int:
        """Queries, B T."""
        return batch.tokens.numel()

    def total(self, output: Output) -> Tensor:
        return output.extras[self.extra]


class LMObjective(Options):
    """[objective]"""

    activation_regularization: float = Field(default=0.0, ge=0)
    """alpha: the mean square of the hidden states, after dropout, times this is added."""
    temporal_activation_regularization: float = Field(default=0.0, ge=0)
    """beta: the mean square of their differences from step to step, before dropout, times this."""

    variable_length: bool = False
    """Backpropagation through batches that differ in length around `sequence_length`, the learning
    rate of each in proportion to it (Merity et al. 2018, section 4.1)."""

    def losses(self, model: LanguageModel) -> tuple[AuxiliaryLoss, ...]:
        """The losses whose weight is above 0, and that of a compression which learns.

        Raises:
            ConfigError: the model does not give what one of them reads.
        """
        losses = dict(self._named())
        for option, loss in losses.items():
            if loss.extra and loss.extra not in model.extras:
                raise ConfigError(
                    f"[objective] `{option}` reads `{loss.extra}` of the model's output, which "
                    f"{type(model).__name__} does not give. Leave it out."
                )
        reconstruction = ReconstructionLoss()
        return (
            *losses.values(),
            *([reconstruction] if reconstruction.extra in model.extras else []),
        )

    def _named(self) -> Iterator[tuple[str, AuxiliaryLoss]]:
        if alpha := self.activation_regularization:
            yield "activation_regularization", ActivationRegularization(alpha)
        if beta := self.temporal_activation_regularization:
            yield "temporal_activation_regularization", TemporalActivationRegularization(beta)
