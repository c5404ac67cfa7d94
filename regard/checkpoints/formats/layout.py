"""What a published layout offers, and the parts that several layouts share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn


class Layout(Protocol):
    """How models of one class are published; one file of this folder, one line in its table."""

    model: type[nn.Module]
    """The class of ours, under heads that of the encoder."""

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

    def in_their_order(self, hidden: Tensor) -> Tensor:
        """Our hidden states (..., D), their dimensions in the order of the published model."""
