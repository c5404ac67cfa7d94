"""A recipe with its task: the data read, the model built, all ready to be trained."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import ops
from regard.checkpoints.adapters import add_adapters
from regard.checkpoints.hub import files_of_model, folder_of
from regard.checkpoints.model_folder import open_folder, read_model
from regard.data import hash_of
from regard.errors import CheckpointError, ConfigError, warn
from regard.experiments.recipe_options import FineTuneSection, LoraSection, starts_from_trained
from regard.file_writing import not_written
from regard.models import as_encoder, as_encoder_decoder, model_class, name_of
from regard.models.composed import Features
from regard.models.conversions import exchange_vocabulary, keep_layers
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.schema import change_lines
from regard.tasks import task_class
from regard.tasks.encoder_training import headed
from regard.tasks.folders import device_for, save, save_adapter
from regard.tasks.task import Task
from regard.text import Tokenizer
from regard.text.sentencepiece import is_m2m_100, is_marian
from regard.training.options import defaults_of, with_defaults, with_enough_epochs


def build_model(section: Any, tokenizer: Tokenizer) -> nn.Module:
    """The model of a section [model], for the vocabulary of this tokenizer.

    Raises:
        ConfigError: the tokenizer lacks a special token, or options contradict each other.
    """
    if isinstance(section, FineTuneSection):
        return _model_to_fine_tune(section)
    model: Any = model_class(section.name)
    special = special_ids(tokenizer, {field.name: field.default for field in fields(model.Config)})
    options = section.model_dump(exclude={"name", "size"})
    options |= _vocabularies(tokenizer, options)
    try:
        return model(model.Config(**options, **special))
    except (ValueError, OverflowError, RuntimeError) as error:  # torch's own have the last type
        raise ConfigError(f"[model] {str(error).removeprefix('[model] ')}") from None


def _vocabularies(tokenizer: Tokenizer, options: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of a model's vocabularies.

    Raises:
        ConfigError: sources have their own, and the model has no place for it; or the special
            tokens of both, which the model has once, differ.
    """
    targets = tokenizer.for_targets
    if targets is tokenizer:
        return {"vocab_size": tokenizer.vocab_size}
    if "source_vocab_size" not in options:
        raise ConfigError("[model] has one vocabulary, but the tokenizer has one for each side.")
    roles = ("pad", "bos", "eos")
    if any(getattr(tokenizer, f"{r}_id") != getattr(targets, f"{r}_id") for r in roles):
        raise ConfigError("[tokenizer] the ids of pad, bos and eos differ between both sides.")
    return {"vocab_size": targets.vocab_size, "source_vocab_size": tokenizer.vocab_size}


def special_ids(tokenizer: Tokenizer, config: Mapping[str, Any]) -> dict[str, int | None]:
    """The ids of the special tokens that a model's configuration has: `pad`, `bos`, `eos`.

    config: the fields of the configuration with their values; None: the token may be missing.

    Raises:
        ConfigError: the tokenizer lacks a token that the model needs.
    """
    special = {role: getattr(tokenizer, f"{role}_id") for role in {"pad", "bos", "eos"} & {*config}}
    for role, number in special.items():
        if number is None and config[role] is not None:
            raise ConfigError(f"The tokenizer has no {role} token, which the model needs.")
    return special


def _model_to_fine_tune(section: FineTuneSection) -> nn.Module:
    """The model of a folder, with the options that [model] changes."""
    folder_of(section.path)  # a missing folder is the first error
    if section.features and section.lora:
        raise ConfigError("[model.lora] cannot stand beside [model.features]: leave one out.")
    model = read_model(section.path, section.changes())
    if section.layers is not None:
        model = keep_layers(headed(model), section.layers)
    if section.features is None:
        return model
    options = section.features.model_dump()
    options["feature_layers"] = options.pop("layers")
    encoder = headed(model).encoder
    try:
        return Features.over(encoder, name_of(encoder), options)
    except ConfigError as error:
        raise ConfigError(f"[model.features] {error}") from None


def build_tokenizer(recipe: Any) -> Tokenizer:
    """The tokenizer that [tokenizer] describes, or that of the folder that [model] names.

    Raises:
        ConfigError: there is neither [tokenizer] nor [model] path.
    """
    if recipe.tokenizer is not None:
        return recipe.tokenizer.build(recipe.data.texts)
    if not isinstance(recipe.model, FineTuneSection):
        raise ConfigError("[tokenizer] is missing: a model with random weights needs a new one.")
    return open_folder(recipe.model.path).tokenizer()


def for_vocabulary(model: nn.Module, path: str, tokenizer: Tokenizer) -> nn.Module:
    """The model of a folder for the words of another tokenizer; a warning tells how many are known.

    Tokens are matched by their role, such as end of text, then by their text.

    Raises:
        CheckpointError: the folder has no tokenizer.
        ConfigError: the tokens are no words, or the model has no row for each of them.
    """
    stored = open_folder(path).tokenizer()
    if stored.vocab() == tokenizer.vocab() and stored.roles == tokenizer.roles:
        return model
    if not stored.kind == tokenizer.kind == "words":
        hint = f"Leave [tokenizer] out: {path} has its own, and only words can be exchanged."
        raise ConfigError(f"The kinds of tokens are {stored.kind} and {tokenizer.kind}. {hint}")
    ids_of_folder = stored.vocab()
    roles = {
        name: stored.roles[role] for role, name in tokenizer.roles.items() if role in stored.roles
    }
    tokens = map(tokenizer.token, range(tokenizer.vocab_size))
    rows = [ids_of_folder.get(roles.get(token, token), -1) for token in tokens]
    new = sum(row < 0 for row in rows)
    warn(
        f"[tokenizer]: {new:,} of {len(rows):,} words are not in the vocabulary of {path}. They "
        f"start from the mean of its {stored.vocab_size:,} vectors; its other words are dropped.",
    )
    config: Any = model.config
    return exchange_vocabulary(model, rows, **special_ids(tokenizer, asdict(config)))


def adapt(task: Any, section: LoraSection | None, base: Any) -> None:
    """Add the adapters of a recipe to the model of a task; without the section, do nothing.

    base: the model from which the task was made. If the task has added special tokens to its
        vocabulary, the embedding is trained too.

    Raises:
        ConfigError: the model cannot have these adapters.
    """
    if section is None:
        return
    model: Any = task.module
    has_new_tokens = model.config.vocab_size != base.config.vocab_size
    try:
        add_adapters(
            model,
            section.options(),
            [*model.encoder.embedding.parameters()] if has_new_tokens else (),
        )
    except ConfigError as error:
        raise ConfigError(f"[model.lora] {error}") from None


ADAPTER = "adapter"  # a folder in a run's folder, beside model/
REPORT = "report.html"
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
        suited = [other for other in others if other is not None and kind.trains(type(other))]
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
        warn(note)
    return planned


def with_training_defaults(recipe: Any, model: nn.Module) -> Any:
    """The recipe, with the options of its training that nobody set: those of its model."""
    section = recipe.model
    lora = section.lora if isinstance(section, FineTuneSection) else None
    defaults = defaults_of(
        model, trained_before=starts_from_trained(section), adapters=lora is not None
    )
    return recipe.model_copy(update={"training": with_defaults(recipe.training, defaults)})


def holds_tokenizer(folder: Path) -> bool:
    """Whether a folder holds all files of a tokenizer."""
    holds = (folder / "tokenizer.json").exists() or is_marian(folder) or is_m2m_100(folder)
    return holds and (folder / "tokenizer_config.json").exists()


# ---- the model that a training starts from
#
# Until it is finished, a run keeps the files of the model that it starts from, so that it can be
# resumed where the model's own folder has been removed: RUN/start/ has hard links to the weights,
# which take no space, or copies of them where the run is on another disk.

START = "start"
SMALL = 1 << 20  # bytes; smaller files are copied, so that an editor does not change them


def checksums_of(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file that a model is read from, by its name in the folder."""
    files = files_of_model(folder)
    return {str(file.relative_to(folder)): hash_of(file) for file in files}


def keep_start(section: Any, run: Path) -> None:
    """Keep the files of the model that [model] `path` names in the folder of a run.

    Raises:
        CheckpointError: they cannot be written.
    """
    if not isinstance(section, FineTuneSection):
        return
    source = folder_of(section.path)
    for file in files_of_model(source):
        link = run / START / file.relative_to(source)
        try:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            _link_or_copy(file.resolve(), link)
        except OSError as error:
            raise not_written(link, error) from error


def _link_or_copy(file: Path, new: Path) -> None:
    if file.stat().st_size >= SMALL:
        try:
            os.link(file, new)
        except OSError:  # another disk, or one without links
            pass
        else:
            return
    shutil.copyfile(file, new)


def kept_start(run: Path) -> Path | None:
    """The folder of the model that an unfinished run started from, if the run keeps it."""
    return run / START if (run / START).is_dir() else None


def remove_start(run: Path) -> None:
    """Remove what `keep_start` has kept, from a run that is finished."""
    shutil.rmtree(run / START, ignore_errors=True)


def check_start(section: Any, recorded: Mapping[str, str], run: Path) -> bool:
    """Check that the model that a run started from is what it was, if its folder is still there.

    recorded: the checksums that the run has recorded.

    Returns:
        False where the folder is gone.

    Raises:
        ConfigError: its files have changed; all that differ are named.
    """
    if not isinstance(section, FineTuneSection) or not recorded:
        return True
    try:
        folder = folder_of(section.path, download=False)
    except CheckpointError:  # it has been removed
        return False
    if changes := change_lines(recorded, checksums_of(folder)):
        hint = "Put its files back, or train into another folder."
        raise ConfigError(f"{folder}, where {run} started, has changed since:{changes}\n{hint}")
    return True
