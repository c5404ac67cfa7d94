"""The model of a task as one process holds it: what a training asks of it, and the whole model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from regard import ops
from regard.checkpoints.filling import load_weights
from regard.training.optimizers import trained
from regard.training.task import Losses, Task

Value = TypeVar("Value")
LossesOfBatches = list[dict[str, Tensor]]  # of an update: one entry for each batch


class ShardedModel(ABC):
    """The model of a task as the processes of a training hold it.

    trained: the parameters to train as this process holds them, by name; a tied one comes once.
    """

    trained: dict[str, Tensor]

    @abstractmethod
    def losses(self, batch: Any, carry: Any) -> tuple[Losses, Any]:
        """`Task.losses` of the rows of this process."""

    @abstractmethod
    def reduced(
        self, losses: LossesOfBatches, gradients: Callable[[], list[Tensor]]
    ) -> tuple[LossesOfBatches, Tensor]:
        """The losses and the norm of the gradient over all processes.

        gradients: those of `trained`; they are there when it is called.
        """

    @abstractmethod
    def with_whole_model(self, function: Callable[[], Value]) -> Value:
        """`Processes.from_first` while the first process has the whole model."""

    @abstractmethod
    def gather_on_first(self) -> None:
        """Give the first process the whole model for good: nothing can be trained afterwards."""

    @abstractmethod
    def local_state(self) -> dict[str, Tensor]:
        """`model.state_dict()`: the parts of this process, and the rest in the first."""

    @abstractmethod
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Fill the model with weights, which are whole.

        Raises:
            CheckpointError: they do not fit.
        """

    @abstractmethod
    def local_parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this process holds of tensors in the shapes of the parameters of these names; a
        name may end in `/` and something more."""


class WholeModel(ShardedModel):
    """That of one process."""

    def __init__(self, task: Task):
        self.task, self.model = task, task.model
        self.trained = {**trained(task.model)}

    def losses(self, batch: Any, carry: Any) -> tuple[Losses, Any]:
        return self.task.losses(batch, carry)

    def reduced(
        self, losses: LossesOfBatches, gradients: Callable[[], list[Tensor]]
    ) -> tuple[LossesOfBatches, Tensor]:
        return losses, ops.gradient_norm(gradients())

    def with_whole_model(self, function: Callable[[], Value]) -> Value:
        return function()

    def gather_on_first(self) -> None:
        pass

    def local_state(self) -> dict[str, Tensor]:
        return dict(self.model.state_dict())

    def load(self, weights: Mapping[str, Tensor]) -> None:
        load_weights(self.model, weights)

    def local_parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)
