"""A recipe with its task: the data read, the model built, all ready to be trained."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import ops
from regard.checkpoints.hub import folder_of
from regard.data import hash_of
from regard.errors import ConfigError
from regard.experiments.build_model import adapt, build_model, build_tokenizer, for_vocabulary
from regard.experiments.recipe_options import FineTuneSection, LoraSection, starts_from_trained
from regard.experiments.run_folder import checksums_of
from regard.models import as_encoder, as_encoder_decoder
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks import task_class
from regard.tasks.folders import device_for, save, save_adapter
from regard.tasks.task import Task
from regard.text import Tokenizer
from regard.text.sentencepiece import is_m2m_100, is_marian
from regard.training.options import defaults_of, with_defaults, with_enough_epochs

ADAPTER = "adapter"  # a folder in a run's folder, beside model/
PACKAGE = str(Path(__file__).parents[1]) + os.sep
# What of a recipe is no part of `TrainingPlan.identity`: `regard.training` checks its own options
# and the seed, and a name may change.
NOT_IDENTITY = {"training", "seed", "name"}


@dataclass(frozen=True)
class TrainingPlan:
    """A recipe with its task, built and ready to be trained.

    start: the folder of the model that the training starts from; None: from random weights.
    recorded: of a run whose data has moved, the recipe and the checksums with the original paths.
    """

    recipe: Any
    task: Task
    start: Path | None = None
    recorded: tuple[Any, Mapping[str, str]] | None = None

    @cached_property
    def checksums(self) -> dict[str, str]:
        """The SHA-256 of each file of data."""
        return {name: hash_of(name) for name in self.recipe.data.files()}

    @cached_property
    def start_checksums(self) -> dict[str, str]:
        """The SHA-256 of each file of the model that the training starts from."""
        return {} if self.start is None else checksums_of(self.start)

    @property
    def lora(self) -> LoraSection | None:
        """The adapters that the recipe asks for."""
        section = self.recipe.model
        return section.lora if isinstance(section, FineTuneSection) else None

    def with_enough_epochs(self) -> TrainingPlan:
        """The same plan, in which small data are read more often."""
        batches = self.task.train_batches().batches_per_epoch
        training = with_enough_epochs(self.recipe.training, batches)
        return replace(self, recipe=self.recipe.model_copy(update={"training": training}))

    def publish(self, folder: Path) -> None:
        """Write model/ of a run, which is `folder`, and adapter/ where the model has adapters.

        Models that were trained with it have folders beside it.
        """
        save(self.task, folder)
        for name, companion in self.task.companions().items():
            save(companion, folder.parent / name)
        if self.lora is not None:
            base = self.recipe.model.path
            save_adapter(self.task, folder.parent / ADAPTER, self.lora.options(), base)

    def identity(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        recipe, checksums = self.recorded or (self.recipe, self.checksums)
        return {
            "recipe": recipe.model_dump(mode="json", exclude=NOT_IDENTITY),
            "data": dict(checksums),
            "start": self.start_checksums,
            "tokenizer": self.task.tokenizer.fingerprint(),
            **self.task.identity(),
        }


def plan(
    recipe: Any,
    tokenizer: Tokenizer | None = None,
    device: str | None = None,
    start: Path | None = None,
) -> TrainingPlan:
    """Read the data, train the tokenizer unless it is given, and build the model from the seed.

    A warning says which data is left out or truncated.

    device: as in `train`.
    start: the folder that is read in place of [model] `path`, which names the same model.

    Raises:
        ConfigError, DataError, CheckpointError: the recipe, the data or the folder to start from is
            wrong.
    """
    ops.load_kernels()
    kind, section = task_class(recipe.task), recipe.model
    tokenizer = tokenizer or build_tokenizer(recipe)
    torch.manual_seed(recipe.seed)
    if isinstance(section, FineTuneSection):
        start = start or folder_of(section.path)
        section = section.model_copy(update={"path": str(start)})
    model = build_model(section, tokenizer)
    if isinstance(section, FineTuneSection) and recipe.tokenizer is not None:
        model = for_vocabulary(model, section.path, tokenizer)
    if not kind.trains(type(model)) and not isinstance(model, EncoderWithHeads):
        others = (as_encoder(model), as_encoder_decoder(model))
        suited = [one for one in others if one is not None and kind.trains(type(one))]
        if not suited:
            name = type(model).__name__
            raise ConfigError(f"[model] {name} cannot learn the task {recipe.task}.")
        model = suited[0]
    model = model.to(device_for(device))
    recipe = with_training_defaults(recipe, model)
    planned = TrainingPlan(recipe, kind.from_recipe(recipe, model, tokenizer), start)
    planned.task.start_from_word_vectors(recipe)
    adapt(planned.task, planned.lora, model)
    for note in planned.task.notes():
        warnings.warn(note, stacklevel=_level_of_caller())
    return planned


def with_training_defaults(recipe: Any, model: nn.Module) -> Any:
    """The recipe, with the options of its training that nobody set: those of its model."""
    section = recipe.model
    lora = section.lora if isinstance(section, FineTuneSection) else None
    defaults = defaults_of(
        model, trained_before=starts_from_trained(section), adapters=lora is not None
    )
    return recipe.model_copy(update={"training": with_defaults(recipe.training, defaults)})


def _level_of_caller() -> int:
    """The `stacklevel` with which a warning names the code that has called this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


def holds_tokenizer(folder: Path) -> bool:
    """Whether a folder holds all files of a tokenizer."""
    holds = (folder / "tokenizer.json").exists() or is_marian(folder) or is_m2m_100(folder)
    return holds and (folder / "tokenizer_config.json").exists()
