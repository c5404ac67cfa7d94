"""Callbacks that send logged values to Weights & Biases or MLflow; each needs its own extra.

    regard.train("recipe.toml", callbacks=[WandbLogger(project="films")])

TensorBoard is an option of recipes, `training.tensorboard`. A resumed run repeats the steps after
its last checkpoint and sends their values again, with the same numbers of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import MissingExtra
from regard.training.callbacks import Callback
from regard.training.result import Result


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The values that are numbers, by name."""
    return {name: value for name, value in values.items() if type(value) in (int, float)}


def final_scores(result: Result) -> dict[str, float]:
    """Those of the last validation by their names, and those on the test data as "test/NAME"."""
    tested = {f"test/{name}": value for name, value in result.test_scores.items()}
    return numbers(result.scores | tested)


class WandbLogger(Callback):
    """Sends logged values and the final scores to a run of Weights & Biases.

    Args:
        options: arguments of `wandb.init`: project, name, config, mode ...

    Raises:
        MissingExtra: wandb is not installed.
    """

    def __init__(self, **options: Any):
        try:
            import wandb
        except ImportError as error:
            raise MissingExtra("wandb", "wandb", "Logging to Weights & Biases") from error
        self.run = wandb.init(**options)

    def on_log(self, step: int, values: Mapping[str, Any]) -> None:
        self.run.log(numbers(values), step=step)

    def on_end(self, result: Result) -> None:
        self.run.summary.update(final_scores(result))
        self.run.finish()


class MLflowLogger(Callback):
    """Sends logged values and the final scores to a run of MLflow.

    Args:
        options: arguments of `mlflow.start_run`: run_name, experiment_id, tags ...

    Raises:
        MissingExtra: mlflow is not installed.
    """

    def __init__(self, **options: Any):
        try:
            import mlflow
        except ImportError as error:
            raise MissingExtra("mlflow", "mlflow", "Logging to MLflow") from error
        self.client, self.run = mlflow, mlflow.start_run(**options)

    def on_log(self, step: int, values: Mapping[str, Any]) -> None:
        self.client.log_metrics(numbers(values), step=step)

    def on_end(self, result: Result) -> None:
        self.client.log_metrics({f"final/{k}": v for k, v in final_scores(result).items()})
        self.client.end_run()
