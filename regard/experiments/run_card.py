"""The cards of a finished run's model and adapters: its data, recipe and scores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from regard.checkpoints.hub import CONFIG
from regard.experiments.lora import ADAPTER
from regard.experiments.training_plan import TrainingPlan
from regard.schema import read_json
from regard.tasks.model_card import (
    CardHistory,
    CardScore,
    CardTraining,
    adapter_form,
    write_card,
)
from regard.training import Result


def write_run_card(made: TrainingPlan, folder: Path, result: Result) -> None:
    """Write the cards of model/ and adapter/ of a finished run, which is `folder`, as `write_card`
    does.
    """
    recipe = made.recipe.model_dump(mode="json", exclude_none=True, exclude={"data"})
    _, checksums = made.recorded or (None, made.checksums)
    training = CardTraining(recipe, checksums, tuple(_scores(made, result)))
    history = CardHistory.of_training(made.task, training)
    config = read_json(folder / "model" / CONFIG)
    write_card(made.task, folder / "model", config, history)
    if made.lora is not None:
        form = adapter_form(made.lora.options(), made.recipe.model.path)
        write_card(made.task, folder / ADAPTER, config, history, form)


def _scores(made: TrainingPlan, result: Result) -> Iterator[CardScore]:
    """Those of the weights in model/, on validation and test data."""
    data = made.recipe.data.model_dump(mode="json")
    for part, scores in (("valid", result.scores), ("test", result.test_scores)):
        for name, value in scores.items():
            if value is not None:
                signature = result.test_signatures.get(name, "") if part == "test" else ""
                yield CardScore(_files(part, data.get(part)), name, value, signature)


def _files(part: str, value: Any) -> str:
    """The names of the files of a part, or what the part is where they are not named."""
    given = value if isinstance(value, list) else [value]
    if given and all(isinstance(one, str) for one in given):
        return ", ".join(PurePath(one).name for one in given)
    return {"valid": "validation data", "test": "test data"}[part]
