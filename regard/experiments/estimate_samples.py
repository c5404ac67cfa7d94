"""Batches of a training: real ones, or assumed ones where there is no data.

Where the data exists and is not large, it is read, the tokenizer is trained, and real batches are
counted. Else the vocabulary is the recipe's, or that of the folder that the model is started from;
every sentence has `ASSUMED_TOKENS` tokens, and tasks that read long texts have rows of the maximum
length. Tasks whose losses need the targets of the data always read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from torch import nn

from regard.attention.pruning import HasModule
from regard.checkpoints.filling import on_meta
from regard.checkpoints.hub import resolve
from regard.data.files import split_member
from regard.errors import ConfigError
from regard.experiments.build_model import adapt, build_model, build_tokenizer
from regard.experiments.recipe_options import FineTuneSection
from regard.tasks import task_class
from regard.tasks.encoding import EncoderTask, headed
from regard.text import Tokenizer
from regard.training import Trainable
from regard.training.flops import grids_of, twin

ASSUMED_TOKENS = 30  # tokens of a sentence, both ends included, as in WMT's news
MAX_BYTES = 64 << 20  # of data that is read for an estimate
BATCHES = 4  # real batches that are counted

HasModuleT = TypeVar("HasModuleT", bound=HasModule)


@dataclass(frozen=True)
class TaskSample:
    """A task whose model is on the meta device, and some of its batches.

    batches_per_epoch: None where it is unknown.  vocabulary, how: the vocabulary and the batches,
    described in words.
    """

    task: Trainable
    batches: Sequence[Any]
    batches_per_epoch: int | None
    vocabulary: str
    how: str


def with_local_model(recipe: Any) -> Any:
    """The recipe; a model of the hub is replaced by its folder in the cache.

    Raises:
        ConfigError, CheckpointError: it is not on this machine; nothing is downloaded.
    """
    if not isinstance(recipe.model, FineTuneSection):
        return recipe
    path = recipe.model.path
    if "$" in path:
        raise ConfigError(
            f"[model] path: there is no variable for {path[path.index('$') :]}. What a training "
            "costs depends on the model: set it, or give path=FOLDER for another one."
        )
    section = recipe.model.model_copy(update={"path": str(resolve(path, download=False))})
    return recipe.model_copy(update={"model": section})


def read_sample(recipe: Any) -> TaskSample:
    """Real batches where the data exists and is not large, else assumed ones.

    Raises:
        DataError: the data are missing, and without them the targets of the task are unknown.
    """
    kind = task_class(recipe.task)
    if why := _why_not_read(recipe):
        without_teacher = "; the passes of the teacher are not counted"
        why += without_teacher if dict(recipe).get("teacher") else ""
        if (assumed := _assumed(recipe, kind, why)) is not None:
            return assumed
    tokenizer = build_tokenizer(recipe)
    model = _model(recipe, tokenizer)
    task = _with_adapters(recipe, kind.from_recipe(recipe, model, tokenizer), model)
    sampler = task.train_batches()
    batches_per_epoch = sampler.batches_per_epoch
    batches = list(islice(sampler, min(BATCHES, batches_per_epoch)))
    how = f"{shape_of(batches[0])}; mean of {len(batches)} of {batches_per_epoch:,} an epoch"
    vocabulary = f"{tokenizer.vocab_size:,} tokens, {_origin(recipe)}"
    return TaskSample(task, batches, batches_per_epoch, vocabulary, how)


def _with_adapters(recipe: Any, task: HasModuleT, model: nn.Module) -> HasModuleT:
    """The task, its model with the adapters that the recipe asks for; `model` is without a head."""
    if isinstance(recipe.model, FineTuneSection):
        adapt(task, recipe.model.lora, model)
    return task


def _why_not_read(recipe: Any) -> str:
    """Why the data is not read; "" where it is."""
    files = [split_member(file)[0] for file in recipe.data.files()]
    missing = next((str(file) for file in files if not file.exists()), "")
    if "$" in missing:
        return f"there is no variable for {missing[missing.index('$') :]}"
    if missing:
        return f"{missing} is not there"
    size = sum(split_member(file)[0].stat().st_size for file in recipe.data.files_of_examples())
    return f"{size / 1e6:,.0f} MB of data are not read for an estimate" if size > MAX_BYTES else ""


def _model(recipe: Any, tokenizer: Any) -> Any:
    """The recipe's model on the meta device."""
    if isinstance(recipe.model, FineTuneSection):
        return twin(build_model(recipe.model, tokenizer), "meta")
    with on_meta():
        model = build_model(recipe.model, tokenizer)
    return model.to("meta")  # tables made by numpy are still on the CPU


def _origin(recipe: Any) -> str:
    if recipe.tokenizer is None:
        return "of the model's folder"
    return "trained on the data" if recipe.tokenizer.path is None else "as its file says"


def _assumed(recipe: Any, kind: Any, why: str) -> TaskSample | None:
    """An assumed batch; None where the losses need the targets of the data."""
    tokenizer, vocabulary = _assumed_tokenizer(recipe)
    model = _model(recipe, tokenizer)
    kind.check_length(recipe, limit := model.config.max_length)
    words = min(ASSUMED_TOKENS, limit or ASSUMED_TOKENS)
    if not issubclass(kind, EncoderTask):
        task, assumed = kind(model, tokenizer), f"sentences of {words} tokens"
    else:
        model = headed(model)
        task, assumed = kind.without_data(recipe, model, tokenizer), "full rows"
        if task is None:
            return None
        longest = min(recipe.data.max_length, limit or recipe.data.max_length)
        data = recipe.data.model_copy(update={"max_length": longest})
        recipe = recipe.model_copy(update={"data": data})
    batch = kind.example(recipe, words)
    how = f"{shape_of(batch)}; {assumed} are assumed: {why}"
    return TaskSample(_with_adapters(recipe, task, model), [batch], None, vocabulary, how)


def _assumed_tokenizer(recipe: Any) -> tuple[Tokenizer, str]:
    """A tokenizer with as many tokens as the recipe's, and a description."""
    section = recipe.tokenizer
    if section is None or (section.path is not None and section.path.exists()):
        tokenizer = build_tokenizer(recipe)
        return tokenizer, f"{tokenizer.vocab_size:,} tokens, {_origin(recipe)}"
    words = section.model_copy(update={"kind": "words", "path": None})
    made = words.build(lambda: (f"w{number}" for number in range(section.vocab_size)))
    why = "as the recipe says" if section.path is None else f"assumed: {section.path} is not there"
    return made, f"{made.vocab_size:,} tokens, {why}"


def shape_of(batch: Any) -> str:
    """(833, 30) and (833, 30) tokens"""
    grids = [str(tuple(grid.shape)) for grid in grids_of(batch)]
    return " and ".join(dict.fromkeys(grids)) + " tokens"
