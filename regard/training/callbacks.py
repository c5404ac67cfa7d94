"""What a training asks of a task, its result, and who is told of its progress."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from regard.data.batches import Batches, Losses
from regard.errors import CheckpointError
from regard.progress import clock, reporter
from regard.schema import read_json


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


RESULT = "result.json"


@dataclass(frozen=True)
class Result:
    """How a training ended; also in result.json, where a number that is not finite is null.

    reason: the limit that ended it.  weights: which weights are in model/.
    tokens: predicted tokens, or what else the task counts (examples).
    seconds: spent in steps.  best: the best score of the goal, at `best_step`: the
        last step with it.
    scores: of the weights in model/ on the validation data: those of the validation at
        `best_step`, or of the mean of the last checkpoints where that is in model/.
    test_scores: of the weights in model/ on the test data, by the names that `regard evaluate`
        prints; empty where there are no test data.  test_signatures: how each was measured.
    """

    reason: str
    weights: str
    step: int
    tokens: int
    seconds: float
    best: float | None
    best_step: int
    scores: dict[str, float | None]
    test_scores: dict[str, float | None] = field(default_factory=dict)
    test_signatures: dict[str, str] = field(default_factory=dict)

    def labelled_scores(self) -> dict[str, float | None]:
        """The scores with the data that they were measured on: "valid bleu", "test BLEU"."""
        parts = {"valid": self.scores, "test": self.test_scores}
        return {f"{part} {name}": n for part, scores in parts.items() for name, n in scores.items()}


def read_result(folder: Path) -> Result:
    """What result.json of a finished run says.

    Raises:
        FileNotFoundError: the run is not finished.
        CheckpointError: the file is damaged; the message names the field.
    """

    def damaged(message: str) -> CheckpointError:
        hint = "If you remove the file, `regard resume` writes it again."
        return CheckpointError(f"{message}\n{hint}")

    return read_json(folder / RESULT, Result, error=damaged)


@dataclass(frozen=True)
class Status:
    """How far a training is.

    fraction: how much of the training is done, from 0 to 1.
    tokens_per_s: the rate, in `items` per second.
    left: the estimated seconds to the end.
    items: what the rate counts: predicted tokens, or what the task says.
    """

    step: int
    epochs: float
    fraction: float
    tokens_per_s: float
    loss: float
    learning_rate: float
    left: float
    items: str = "tokens"

    def __str__(self) -> str:
        return (
            f"step {self.step:,} · epoch {self.epochs:.2f} · {self.fraction:.1%} · "
            f"loss {self.loss:.4f} · lr {self.learning_rate:.2e} · "
            f"{self.tokens_per_s:,.0f} {self.items}/s · {clock(self.left)} left"
        )


@runtime_checkable
class Progress(Protocol):
    """Shows the status of a training, which the loop gives it every `every` seconds; `say` and
    `warn` show a message at once.
    """

    every: float

    def show(self, status: Status) -> None: ...
    def say(self, message: str) -> None: ...
    def warn(self, message: str) -> None: ...
    def close(self) -> None: ...


def display_of(progress: bool | Progress = True) -> Progress:
    """A bar when standard error is a terminal, lines when it is not; with False warnings alone.

    Another `Progress` is returned as it is.
    """
    return reporter(progress) if isinstance(progress, bool) else progress


@dataclass(frozen=True)
class Step:
    """A training step that was applied.

    number: from 1.
    epochs: how many epochs of the training data are done, such as 1.5.
    learning_rate: the rate of this step.
    gradient_norm: the norm of the gradient before clipping.
    """

    number: int
    epochs: float
    learning_rate: float
    gradient_norm: float


class Callback:
    """Base class of callbacks; a subclass overrides the methods that it needs.

    A callback may read everything. A run can be resumed exactly and repeated bit for bit as long as
    its callbacks do not change the model, the options or the batches, and draw random numbers only
    from their own generators. An exception ends the training; its checkpoints stay, and
    `regard.resume` continues from the last one.
    """

    def on_step(self, step: Step) -> None:
        """Called after each step."""

    def on_log(self, step: int, values: Mapping[str, Any]) -> None:
        """Called for each line of metrics.jsonl: values by name, such as "train/loss"."""

    def on_validation(self, step: int, scores: Mapping[str, float]) -> None:
        """Called after each validation: scores by the names of the metrics."""

    def on_checkpoint(self, path: Path) -> None:
        """Called after a checkpoint was written: `path` is its folder."""

    def on_end(self, result: Result) -> None:
        """Called at the end, when the final weights are in model/."""
