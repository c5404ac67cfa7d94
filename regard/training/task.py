"""The protocol of a task in training."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from torch import Tensor

from regard.data.batches import Batches

Losses = dict[str, tuple[Tensor, int]]


class Trainable(Protocol):
    """What a training asks of a task; tasks of one's own inherit it.

    module: an `nn.Module`, whose parameters with `requires_grad` are trained.
    items: what its first loss counts: "tokens", "examples".
    usual: how many items of a loss a batch has on average, where the objective divides by that.
    aux_lm: a second objective, the prediction of the next token, where the task has it.
    """

    module: Any
    items: str = "tokens"
    usual: Mapping[str, float] = MappingProxyType({})
    aux_lm: Any = None

    @property
    def goal(self) -> tuple[str, str]:
        """The score that selects the best weights, and "max" or "min"."""

    def counts(self, batch: Any) -> dict[str, int]:
        """The number of items that each loss sums over, known before anything is computed."""

    def losses(self, batch: Any, carry: Any) -> tuple[Losses, Any]:
        """Each loss as (sum over its items, number of items), and the `carry` of the next batch.

        carry: None or a `State`, detached.
        """

    def rate_factor(self, batch: Any) -> float:
        """What the learning rate is multiplied by for the step of this batch."""
        return 1.0

    def train_batches(self) -> Batches:
        """The batches to learn from."""

    def validate(self) -> dict[str, float]:
        """The scores on held-out data; empty where there is none."""
