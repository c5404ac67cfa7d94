"""The protocol of a published layout, and parts that several layouts share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from regard.checkpoints.names import Names


class Layout(Protocol):
    """How models of one class are published; one file of this folder, one line in its table."""

    model: type[nn.Module]  # the class of ours, under heads that of the encoder
    model_type: str  # as config.json names it
    family: str  # how the names of their architectures begin
    prefix: str  # before their names of all tensors but those of heads; some files leave it out
    # Their names of the query and value projections, which low-rank adapters change by default.
    adapted: tuple[str, ...]

    @property
    def known_architectures(self) -> Collection[str]:
        """The names in `architectures` of config.json that this layout reads."""

    def has_heads_of(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
        """Whether the tensors have the heads of the architecture that config.json names."""

    def holds(self, model: nn.Module) -> bool:
        """Whether a model is published this way."""

    def write(self, model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The contents of config.json and of model.safetensors."""

    def read(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
        """The model that they hold.

        Raises:
            ConfigError: the configuration asks for what our model does not compute.
            CheckpointError: tensors are missing, left over or of another shape.
        """

    def names_of(self, model: nn.Module) -> Names:
        """The table between the names of a model's tensors and theirs."""

    def architecture_of(self, model: nn.Module) -> str:
        """Their name for a model that this layout holds."""

    def with_architecture(
        self, model: nn.Module, name: str, tensors: Mapping[str, Tensor]
    ) -> nn.Module:
        """The same model under the heads of one of their architectures.

        A head that the model does not have is new, and not initialized.

        tensors: published ones, which say how many outputs a new head has.

        Raises:
            ConfigError: there is no such architecture.
            CheckpointError: neither the model nor the tensors have its head.
        """

    def in_their_order(self, hidden: Tensor) -> Tensor:
        """Our hidden states (..., D), their dimensions in the order of the published model."""
