"""Callbacks that send curves to Weights & Biases and MLflow; each needs an extra of its own.

    regard.train("recipe.toml", callbacks=[WandbLogger(project="films")])

TensorBoard is an option of recipes, `training.tensorboard`. A resumed run repeats the updates after
its checkpoint, and sends their values again, under the same update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import MissingExtra
from regard.training.callbacks import Callback
from regard.training.result import Result


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The values that a curve can show."""
    return {name: value for name, value in values.items() if type(value) in (int, float)}


class WandbLogger(Callback):
    """Curves and the final scores, in a run of Weights & Biases.

    Args:
        options: of `wandb.init`: project, name, config, mode ...

    Raises:
        MissingExtra: wandb is not installed.
    """

    def __init__(self, **options: Any):
        try:
            import wandb
        except ImportError as error:
            raise MissingExtra("wandb", "wandb", "Logging to Weights & Biases") from error
        self.run = wandb.init(**options)

    def on_log(self, update: int, values: Mapping[str, Any]) -> None:
        """See `Callback`."""
        self.run.log(numbers(values), step=update)

    def on_end(self, result: Result) -> None:
        """See `Callback`."""
        self.run.summary.update(numbers(result.scores))
        self.run.finish()


class MLflowLogger(Callback):
    """Curves and the final scores, in a run of MLflow.

    Args:
        options: of `mlflow.start_run`: run_name, experiment_id, tags ...

    Raises:
        MissingExtra: mlflow is not installed.
    """

    def __init__(self, **options: Any):
        try:
            import mlflow
        except ImportError as error:
            raise MissingExtra("mlflow", "mlflow", "Logging to MLflow") from error
        self.client, self.run = mlflow, mlflow.start_run(**options)

    def on_log(self, update: int, values: Mapping[str, Any]) -> None:
        """See `Callback`."""
        self.client.log_metrics(numbers(values), step=update)

    def on_end(self, result: Result) -> None:
        """See `Callback`."""
        self.client.log_metrics({f"final/{k}": v for k, v in numbers(result.scores).items()})
        self.client.end_run()
