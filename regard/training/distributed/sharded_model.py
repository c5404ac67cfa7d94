"""The interface between a training and its model, which may be sharded; the unsharded model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from regard import ops
from regard.checkpoints.filling import load_weights
from regard.training.optimizers import trained
from regard.training.task import Losses, Trainable

Value = TypeVar("Value")
LossesOfBatches = list[dict[str, Tensor]]  # of a step: one entry for each batch


class WholeModel:
    """The model of a task, in one process; `FSDPModel` divides it among several.

    trained: the shards of the trained parameters in this process, by name; tied ones once.
    """

    def __init__(self, task: Trainable):
        self.task, self.model = task, task.module
        self.trained: dict[str, Tensor] = {**trained(task.module)}

    def losses(self, batch: Any, carry: Any) -> tuple[Losses, Any]:
        """`Trainable.losses` of this process's rows of the batch."""
        return self.task.losses(batch, carry)

    def reduced(
        self, losses: LossesOfBatches, gradients: Callable[[], list[Tensor]]
    ) -> tuple[LossesOfBatches, Tensor]:
        """The losses and the norm of the gradient over all processes.

        gradients: returns the gradients of `trained`, after the backward pass.
        """
        return losses, ops.gradient_norm(gradients())

    def with_whole_model(self, function: Callable[[], Value]) -> Value:
        """`Processes.from_first` while the first process has the whole model."""
        return function()

    def gather_on_first(self) -> None:
        """Gather the whole model in the first process; training cannot continue afterwards."""

    def local_state(self) -> dict[str, Tensor]:
        """`model.state_dict()`: the shards of this process; in the first also unsharded tensors."""
        return dict(self.model.state_dict())

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Fill the model with unsharded weights.

        Raises:
            CheckpointError: they do not fit.
        """
        load_weights(self.model, weights)

    def local_parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The shards in this process of tensors that have the shapes of parameters.

        tensors: by the name of the parameter, to which `/` and more may be added.
        """
        return dict(tensors)
