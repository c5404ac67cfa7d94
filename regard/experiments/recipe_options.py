"""Recipes with the options of their task and of their model, checked."""

import dataclasses
from collections.abc import Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import Field

from regard.checkpoints.adapters import AdapterOptions
from regard.errors import ConfigError
from regard.models import MODELS, model_class
from regard.models.composed import FeaturesConfig
from regard.models.config import CombineFeatures, Count, FeatureLayers, Probability, Size
from regard.models.protocols import Model
from regard.recipe import (
    ModelSource,
    Options,
    RawRecipe,
    Recipe,
    options_of,
    read,
    with_section,
)
from regard.tasks import TASKS, task_class
from regard.tasks.sections import DataSection
from regard.tasks.task import Task
from regard.training import TrainingOptions
from regard.training.options import DefaultEpochs, without_effect

# Fields of a model's configuration that [model] cannot set: the tokenizer and pruning set them.
NO_OPTIONS = ("vocab_size", "pad", "bos", "eos", "pruned")


def read_recipe(
    path: str | PathLike[str], overrides: Sequence[str] = (), *, keep_unset: bool = False
) -> Recipe:
    """A recipe with the options of its task and its model, all of them checked.

    keep_unset: see `regard.recipe.RawRecipe.check`.

    Raises:
        ConfigError, DataError: the recipe cannot be read, or names what does not exist.
    """
    return open_recipe(path, overrides, keep_unset)[1]


def open_recipe(
    path: str | PathLike[str], overrides: Sequence[str] = (), keep_unset: bool = False
) -> tuple[RawRecipe, Any]:
    """A recipe as it was read, which knows the line of each option, and its checked options.

    Raises:
        ConfigError, DataError: as `read_recipe`.
    """
    raw = read(path, overrides)
    return raw, checked_recipe(raw, keep_unset)


def checked_recipe(raw: RawRecipe, keep_unset: bool = False) -> Any:
    """The checked options of a recipe that was read, its data in files.

    Raises:
        ConfigError: an option does not exist, has a wrong value or has no effect.
    """
    schema = schema_of(raw)
    task = task_class(raw.choice("task", TASKS))
    recipe: Any = raw.check(schema, keep_unset=keep_unset)
    if not recipe.training.has_end():
        # The other defaults are those of the model, which `training_plan` builds.
        epochs = DefaultEpochs(3 if starts_from_trained(recipe.model) else 10)
        training = dataclasses.replace(recipe.training, epochs=epochs)
        recipe = recipe.model_copy(update={"training": training})
    if not raw.run and isinstance(recipe.data, DataSection):
        recipe = recipe.model_copy(update={"data": recipe.data.with_named_columns()})
    if not raw.run:  # the recipe in a run folder was accepted when the run began
        problems = [
            *(recipe.data.problems() if isinstance(recipe.data, DataSection) else ()),
            *task.problems(recipe),
            *without_effect(recipe.training),
        ]
        if problems:
            lines = (f"{raw.location(key)}: `{key}` {problem}" for key, problem in problems)
            raise ConfigError("\n".join(lines))
    return recipe


def starts_from_trained(section: Any) -> bool:
    """Whether [model] starts from the weights of a folder, and trains them."""
    return isinstance(section, FineTuneSection) and section.features is None


def schema_of(raw: RawRecipe) -> type[Recipe]:
    """The options that a recipe may have, by its task and its model.

    Raises:
        ConfigError: it names a task or a model that does not exist, or a task that has no training.
    """
    task = task_class(raw.choice("task", TASKS))
    if task.Recipe is None:
        raise ConfigError(
            f"{raw.location('task')}: nothing trains the task {task.name!r} here: models come with "
            "it. Fine-tune them for another task, or use them as they are."
        )
    section = FineTuneSection if raw.has("model.path") else _model_section(raw, task)
    return _with_sections(task.Recipe, section)


@lru_cache(256)  # of pairs of a task and a model: making the class takes longer than checking
def _with_sections(recipe: type[Recipe], model: type[Options]) -> type[Recipe]:
    whole = with_section(recipe, "model", model)
    return with_section(whole, "training", TrainingOptions, TrainingOptions())


def _model_section(raw: RawRecipe, task: Task) -> type[Options]:
    """[model] of a training that starts from random weights: the options of the model's class."""
    model = model_class(raw.choice("model.name", MODELS))
    if not task.trains(model):
        names = ", ".join(name for name in MODELS if task.trains(model_class(name)))
        raise ConfigError(
            f"{raw.location('model.name')}: the task {task.name} cannot train this model. "
            f"`model.name` must be one of {names}."
        )
    return _options_of_model(model, raw.choice("model.size", ["", *model.SIZES], default=""))


@lru_cache(256)
def _options_of_model(model: type[Model], size: str) -> type[Options]:
    """[model] for a class of models and a named size, "" for none."""
    defaults = model.SIZES.get(size)
    return options_of(model.Config, NO_OPTIONS, defaults, name=(str, ...), size=(str, ""))


class FeaturesSection(Options):
    """[model.features]: the folder's encoder is frozen, and a biLSTM on top of it is trained."""

    layers: FeatureLayers = None
    """The number of a layer or several: 0 is the embeddings, -1 the last. None: the last four."""
    combine: CombineFeatures = FeaturesConfig.combine
    """How several layers become one vector; a list has their weights. "mix" learns the weights of
    all layers."""
    d_model: Size = FeaturesConfig.d_model
    """The width of the hidden states."""
    lstm_layers: Size = FeaturesConfig.lstm_layers
    """The number of LSTM layers."""
    d_words: Count = FeaturesConfig.d_words
    """The width of learned vectors of tokens beside the features; 0: none."""
    dropout: Probability = FeaturesConfig.dropout
    """The dropout probability."""


class LoraSection(Options):
    """[model.lora]: low-rank adapters and the head are trained, other weights are frozen."""

    rank: int = Field(default=AdapterOptions.rank, ge=1)
    """The rank r is the number of rows of A and of columns of B."""
    alpha: float = Field(default=AdapterOptions.alpha, gt=0)
    """The product B A is multiplied by alpha / rank."""
    dropout: float = Field(default=AdapterOptions.dropout, ge=0, lt=1)
    """The dropout probability of the inputs of A, in training."""
    targets: tuple[str, ...] = AdapterOptions.targets
    """The layers that get adapters: published names of linear layers, the ends of such names
    ("query"), or "all-linear"; []: the query and value projections."""

    def options(self) -> AdapterOptions:
        """The options of the adapters."""
        return AdapterOptions(**self.model_dump())


class FineTuneSection(Options):
    """[model]: training starts from the weights of a folder, or of a name on the hub."""

    path: ModelSource
    """The folder of the model, or its name on the hub."""
    layers: tuple[Count, ...] | None = None
    """The layers of an encoder that are kept, from 0, such as [0, 2, 4]; None: all of them."""
    dropout: Probability | None = None
    """Dropout of the encoder's sub-layers; not set: as in the folder."""
    attention_dropout: Probability | None = None
    """Dropout of attention weights; not set: as in the folder."""
    head_dropout: Probability | None = None
    """Dropout before the new head; not set: as in the folder."""
    features: FeaturesSection | None = None
    lora: LoraSection | None = None

    @property
    def name(self) -> str:
        """The name in reports: of the folder, or of the run that has the folder as its `model`."""
        path = Path(self.path)
        return path.parent.name if path.name == "model" and path.parent.name else path.name

    @property
    def size(self) -> str:
        """ "": the weights of the folder have their own size."""
        return ""

    def changes(self) -> dict[str, Any]:
        """The options that differ from the folder's configuration."""
        return self.model_dump(exclude={"path", "layers", "features", "lora"}, exclude_none=True)
