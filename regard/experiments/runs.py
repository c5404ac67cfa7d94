"""From a recipe to a run folder.

folder, result = train("recipes/demo.toml", ["training.updates=100"])
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import ops, training
from regard.checkpoints.filling import SkipInit, load_weights
from regard.checkpoints.model_folder import folder_of, read_model
from regard.data import hash_of
from regard.data.relocation import missing_files, relocate_data
from regard.errors import CheckpointError, ConfigError, DataError
from regard.experiments.report import REPORT, write_report
from regard.models import MODELS, model_class, name_of
from regard.models.features import Features, FeaturesConfig
from regard.models.headed import Headed
from regard.recipe import (
    ModelPlace,
    Options,
    Recipe,
    Source,
    options_of,
    plain_name,
    read,
    record,
    with_section,
    write,
)
from regard.schema import checked
from regard.tasks import TASKS, task_class
from regard.tasks.encoding import headed
from regard.tasks.folders import device, load, save
from regard.text import Tokenizer
from regard.training import Result, TrainingOptions
from regard.training.checkpointing import RESULT
from regard.training.options import without_effect

__all__ = ["load", "plan", "read_recipe", "resume", "save", "train"]

MOST_LAYERS = 10_000
NO_OPTIONS = ("vocab_size", "pad", "bos", "eos", "pruned")  # they follow from something else


# ------------------------------------------------------------------------------ recipes


def read_recipe(
    path: str | Path, overrides: Sequence[str] = (), *, keep_unset: bool = False
) -> Recipe:
    """A recipe with the options of its task and its model, all of them checked.

    keep_unset: see `regard.recipe.Source.check`.

    Raises:
        ConfigError, DataError: the recipe cannot be read, or names what does not exist.
    """
    return _opened(path, overrides, keep_unset)[1]


def _opened(
    path: str | Path, overrides: Sequence[str] = (), keep_unset: bool = False
) -> tuple[Source, Any]:
    """A recipe, with what knows on which line each of its options stands."""
    source = read(path, overrides)
    task = task_class(source.choice("task", TASKS))
    if task.Recipe is None:
        raise ConfigError(
            f"{source.place('task')}: nothing trains the task {task.name!r} here: models come with "
            "it. Fine-tune them for another task, or use them as they are."
        )
    section: type[Options] = Started
    if not source.has("model.path"):
        model = model_class(source.choice("model.name", MODELS))
        if not task.trains(model):
            names = ", ".join(name for name in MODELS if task.trains(model_class(name)))
            raise ConfigError(
                f"{source.place('model.name')}: the task {task.name} cannot train this model. "
                f"`model.name` must be one of {names}."
            )
        size = source.choice("model.size", ["", *model.SIZES], default="")
        section = options_of(
            model.Config, NO_OPTIONS, model.SIZES.get(size), name=(str, ...), size=(str, "")
        )
    schema = with_section(with_section(task.Recipe, "model", section), "training", TrainingOptions)
    recipe: Any = source.check(schema, keep_unset=keep_unset)
    if not source.run:  # the recipe in a run folder was accepted when the run began
        problems = [*task.problems(recipe), *without_effect(recipe.training)]
        if problems:
            said = (f"{source.place(key)}: `{key}` {problem}" for key, problem in problems)
            raise ConfigError("\n".join(said))
    return source, recipe


class FeaturesSection(Options):
    """[model.features]: the folder's encoder is frozen, and a biLSTM learns on top of it."""

    layers: str = FeaturesConfig.choice
    """first, last, second-to-last, sum, sum-last-4, concat-last-4, a number, or mix (learned)."""
    d_model: int = FeaturesConfig.d_model
    lstm_layers: int = FeaturesConfig.lstm_layers
    dropout: float = FeaturesConfig.dropout


class Started(Options):
    """[model] of a training that begins with the weights of a folder, or of a name on the hub."""

    path: ModelPlace
    dropout: float | None = None
    """Where it differs from the folder's, as the two below."""
    attention_dropout: float | None = None
    head_dropout: float | None = None
    features: FeaturesSection | None = None

    @property
    def name(self) -> str:
        """What reports call it: the folder, or the run whose folder `model` it is."""
        path = Path(self.path)
        return path.parent.name if path.name == "model" and path.parent.name else path.name

    @property
    def size(self) -> str:
        """Said by the folder."""
        return ""

    def changes(self) -> dict[str, Any]:
        """What differs from the folder's configuration."""
        return self.model_dump(exclude={"path", "features"}, exclude_none=True)


def build_model(section: Any, tokenizer: Tokenizer) -> nn.Module:
    """The model of a section [model], for the vocabulary of this tokenizer.

    Raises:
        ConfigError: the tokenizer lacks a piece, or options do not fit together.
    """
    if isinstance(section, Started):
        return _started(section)
    model: Any = model_class(section.name)
    roles = {field.name: field.default for field in fields(model.Config)}
    special = {role: getattr(tokenizer, f"{role}_id") for role in {"pad", "bos", "eos"} & {*roles}}
    for role, number in special.items():
        if number is None and roles[role] is not None:
            raise ConfigError(f"The tokenizer has no {role} piece, which the model needs.")
    options = section.model_dump(exclude={"name", "size"})
    _check_numbers(options)
    try:
        config = model.Config(vocab_size=tokenizer.vocab_size, **options, **special)
        _refuse_too_large(lambda: model(config))
        return model(config)
    except (ValueError, OverflowError, RuntimeError) as error:  # torch's own have the last type
        raise ConfigError(f"[model] {str(error).removeprefix('[model] ')}") from None


def _started(section: Started) -> nn.Module:
    """The model of a folder, with the changes that a section [model] asks for."""
    _check_numbers(section.changes())
    folder_of(section.path)  # says that it is missing, before anything else is said of it
    if section.features is None:
        return read_model(section.path, section.changes())
    options = section.features.model_dump()
    _check_numbers(options, "model.features")
    options["choice"] = options.pop("layers")
    encoder = headed(read_model(section.path, section.changes())).encoder
    try:
        return Features.over(encoder, name_of(encoder), options)
    except ConfigError as error:
        raise ConfigError(f"[model.features] {error}") from None


def _check_numbers(options: Mapping[str, Any], section: str = "model") -> None:
    """Raises ConfigError where a number is one that no model can have."""
    for name, value in options.items():
        said = f"[{section}] `{name}` must be"
        if name.endswith("dropout") and value is not None and not 0 <= value < 1:
            raise ConfigError(f"{said} at least 0 and below 1, but is {value}.")
        if type(value) is int and value < 1:
            raise ConfigError(f"{said} at least 1, but is {value}.")
        if type(value) is float and value < 0:
            raise ConfigError(f"{said} at least 0, but is {value}.")
        if name.endswith("layers") and type(value) is int and value > MOST_LAYERS:
            raise ConfigError(f"{said} at most {MOST_LAYERS:,}, but is {value}.")


def _refuse_too_large(make: Callable[[], nn.Module]) -> None:
    """Raises ConfigError where the weights and their gradients cannot be in this machine's memory.

    The model is built without numbers first. What torch says of sizes beyond its own is caught too.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
    try:
        with torch.device("meta"), SkipInit():
            weights = sum(w.numel() * w.element_size() for w in make().parameters())
    except RuntimeError as error:
        said = str(error).split("\n")[0]
        raise ConfigError(f"[model] is too large to be built: {said}.") from None
    if 2 * weights > memory:
        raise ConfigError(
            f"[model] has weights of {weights / 1e9:,.1f} GB. With their gradients they need twice "
            f"of that, but this machine has {memory / 1e9:,.1f} GB of memory. Make it smaller."
        )


@dataclass(frozen=True)
class Plan:
    """A recipe with its task, built and ready to be trained."""

    recipe: Any
    task: Any
    started_with: tuple[Any, Mapping[str, str]] | None = None
    """Of a run whose data has moved: the recipe and the checksums by the names that it had."""

    @cached_property
    def hashes(self) -> dict[str, str]:
        """The SHA-256 of each file of data."""
        return {name: hash_of(name) for name in type(self.task).files(self.recipe)}

    def notes(self) -> list[str]:
        """What of the data is not used as it stands; a task that uses all of it says nothing."""
        return self.task.notes()

    def identity(self) -> dict[str, Any]:
        """What may not change between a run and its resumption."""
        recipe, hashes = self.started_with or (self.recipe, self.hashes)
        return {
            "recipe": recipe.model_dump(mode="json", exclude={"training", "seed", "name"}),
            "data": dict(hashes),
            "tokenizer": self.task.tokenizer.fingerprint(),
        }


def build_tokenizer(recipe: Any) -> Tokenizer:
    """Learned or read as [tokenizer] says; without one, that of the folder that [model] names.

    Raises:
        ConfigError: there is neither.
    """
    if recipe.tokenizer is not None:
        return recipe.tokenizer.build(lambda: task_class(recipe.task).texts(recipe))
    if not isinstance(recipe.model, Started):
        raise ConfigError(
            "A model that starts from nothing learns its tokenizer: say how in [tokenizer], "
            "or start from a folder: [model] path."
        )
    return Tokenizer.load(folder_of(recipe.model.path))


def plan(recipe: Any, tokenizer: Tokenizer | None = None) -> Plan:
    """Read the data, learn the tokenizer unless it is given, and build the model from the seed.

    What of the data is left out or cut is told in a warning.
    """
    ops.load_kernels()
    kind = task_class(recipe.task)
    tokenizer = tokenizer or build_tokenizer(recipe)
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, tokenizer)
    if not kind.trains(type(model)) and not isinstance(model, Headed):
        raise ConfigError(f"[model] {type(model).__name__} cannot learn the task {recipe.task}.")
    model = model.to(device())
    made = Plan(recipe, kind.from_recipe(recipe, model, tokenizer))
    for note in made.notes():
        warnings.warn(note, stacklevel=3)
    return made


# --------------------------------------------------------------------------------- runs


def train(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    show: Any = "auto",
) -> tuple[Path, Result]:
    """Train what a recipe asks for in a new run folder (runs/NAME); gives the folder.

    A run is a folder: recipe.toml (fully resolved), model/, checkpoints/, metrics.jsonl and, when
    it is finished, report.html.
    """
    source, recipe = _opened(path, overrides)
    folder = Path(out) if out else Path("runs") / name_of_run(path, recipe)
    _refuse_a_run(folder)
    with source.placed(type(recipe)):
        made = plan(recipe)
        _refuse_a_run(folder)  # reading the data takes long: another process may have been quicker
        folder.mkdir(parents=True, exist_ok=True)
        made.task.tokenizer.save(folder / "model")
        about = record(recipe.seed, made.hashes) | {"notes": made.notes()}
        write(folder / "recipe.toml", recipe, about)
        return folder, _go(training.train, made, folder, show)


def name_of_run(path: str | Path, recipe: Recipe) -> str:
    """The name that a recipe gives its run: `name`, or that of its file.

    Raises:
        ConfigError: a file's name is none of a folder.
    """
    try:
        return plain_name(recipe.name or Path(path).stem)
    except ValueError as error:
        raise ConfigError(f"{path}: the name of this file {error}. Or set `name` in it.") from None


def _refuse_a_run(folder: Path) -> None:
    if (folder / "recipe.toml").exists():
        raise ConfigError(
            f"{folder} holds a run already. Go on with it (regard resume {folder}), or choose "
            "another folder with --out."
        )


def resume(
    folder: str | Path, *, data_root: str | Path | None = None, show: Any = "auto"
) -> Result:
    """Go on with a run from its newest sound checkpoint, as if it had never stopped.

    Of a finished run that lacks its model/ or its report (it was killed before it had written
    them, or they were removed), these are written; what is there stays as it is.

    data_root: where the data lies now, if it has moved. Each file that recipe.toml records is
        looked for under this folder by the end of its path, and must have the recorded checksum.

    Raises:
        CheckpointError: this is no run, or its files are damaged.
        DataError: files of data are missing or, under `data_root`, differ; all are named.
        ConfigError: what the run was started with has changed.
    """
    folder = Path(folder)
    if not (folder / "recipe.toml").exists():
        raise CheckpointError(f"{folder} is not a run: it has no recipe.toml.")
    source, recipe = _opened(folder / "recipe.toml")
    with source.placed(type(recipe)):
        made = _planned_again(folder, source, recipe, data_root)
        go_on = partial(training.resume, published=partial(_is_published, made.task))
        return _go(go_on, made, folder, show)


def _planned_again(folder: Path, source: Source, recipe: Any, data_root: str | Path | None) -> Plan:
    """The plan of a run that is there, its data where it was or under `data_root`."""
    recorded = checked(
        source.run.get("data", {}), dict[str, str], folder / "recipe.toml", ConfigError, "run.data"
    )
    tokenizer = Tokenizer.load(folder / "model") if holds_tokenizer(folder / "model") else None
    if data_root is not None:
        made = plan(relocate_data(recipe, recorded, Path(data_root)), tokenizer)
        return replace(made, started_with=(recipe, recorded))
    if gone := missing_files(recorded):
        problem = f"the data of this run is no longer there: {', '.join(gone)}."
        hint = f"If it has moved, say where to: regard resume {folder} --data-root DIR"
        raise DataError(folder, None, problem, hint)
    return plan(recipe, tokenizer)


def holds_tokenizer(folder: Path) -> bool:
    """Whether a folder holds all files of a tokenizer."""
    return all((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json"))


def _is_published(task: Any, folder: Path) -> bool:
    """Whether a folder holds all files of a task."""
    wanted = ["config.json", "model.safetensors"]
    wanted += ["generation_config.json"] if task.decodes else []
    return holds_tokenizer(folder) and all((folder / name).exists() for name in wanted)


def _go(verb: Any, made: Plan, folder: Path, show: Any) -> Result:
    """Train, and write what a finished run has beside that; what is there already stays."""
    finished = (folder / RESULT).exists()
    result = verb(
        made.task,
        made.recipe.training,
        folder,
        seed=made.recipe.seed,
        identity=made.identity(),
        save=lambda model, place: save(made.task, place),
        show=show,
    )
    if not (folder / REPORT).exists():
        if finished:  # the task holds the weights that the training began with
            load_weights(made.task.model, load(folder).model.state_dict())
            made.task.model.eval()
        write_report(folder, made.task, made.recipe, result)
    return result
