"""From a recipe to a run folder.

run = train("recipes/demo.toml", updates=100)
run.folder, run.scores, run.model
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import ops, training
from regard.checkpoints.filling import SkipInit, load_weights
from regard.checkpoints.model_folder import folder_of, open_folder, read_model
from regard.data import hash_of
from regard.data.in_memory import is_path
from regard.data.relocation import missing_files, relocate_data
from regard.errors import CheckpointError, ConfigError, DataError
from regard.experiments import keywords
from regard.experiments.lora import LoraSection, adapt, has_run_adapter, write_run_adapter
from regard.experiments.new_vocabulary import for_vocabulary
from regard.experiments.report import REPORT, write_report
from regard.experiments.run_folder import Run
from regard.models import MODELS, as_encoder, as_encoder_decoder, model_class, name_of
from regard.models.adapters import merged
from regard.models.config import MOST_LAYERS, Count, Probability, Size
from regard.models.encoder_with_heads import EncoderWithHeads, deployed
from regard.models.features import Features, FeaturesConfig
from regard.models.keep_layers import keep_layers
from regard.progress import Show, showing
from regard.recipe import (
    ModelSource,
    Options,
    RawRecipe,
    Recipe,
    defaults_of,
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
from regard.tasks.folders import device_for, load, save
from regard.tasks.verbs import TaskVerbs
from regard.text import Tokenizer
from regard.text.sentencepiece import is_m2m_100, is_marian
from regard.training import Result, TrainingOptions
from regard.training.callbacks import Callback, check_callbacks
from regard.training.distributed import connected, processes
from regard.training.options import without_effect
from regard.training.progress import Progress, check_show
from regard.training.result import RESULT
from regard.visual.notebook import NotebookProgress, in_notebook

__all__ = ["load", "plan", "read_recipe", "resume", "save", "train"]

PACKAGE = str(Path(__file__).parents[1]) + os.sep
OWN_TABLES = {"training", "seed", "name"}  # of a recipe: the identity has them elsewhere, or not
NO_OPTIONS = ("vocab_size", "pad", "bos", "eos", "pruned")  # they follow from something else


# ------------------------------------------------------------------------------ recipes


def read_recipe(
    path: str | Path, overrides: Sequence[str] = (), *, keep_unset: bool = False
) -> Recipe:
    """A recipe with the options of its task and its model, all of them checked.

    keep_unset: see `regard.recipe.RawRecipe.check`.

    Raises:
        ConfigError, DataError: the recipe cannot be read, or names what does not exist.
    """
    return open_recipe(path, overrides, keep_unset)[1]


def open_recipe(
    path: str | Path, overrides: Sequence[str] = (), keep_unset: bool = False
) -> tuple[RawRecipe, Any]:
    """A recipe as it was read, which knows the line of each option, and its checked options."""
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
    if not raw.run:  # the recipe in a run folder was accepted when the run began
        problems = [*task.problems(recipe), *without_effect(recipe.training)]
        if problems:
            said = (f"{raw.location(key)}: `{key}` {problem}" for key, problem in problems)
            raise ConfigError("\n".join(said))
    return recipe


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
    return with_section(with_section(task.Recipe, "model", section), "training", TrainingOptions)


def _model_section(raw: RawRecipe, task: TaskVerbs) -> type[Options]:
    """[model] of a training that starts from random weights: the options of the model's class."""
    model = model_class(raw.choice("model.name", MODELS))
    if not task.trains(model):
        names = ", ".join(name for name in MODELS if task.trains(model_class(name)))
        raise ConfigError(
            f"{raw.location('model.name')}: the task {task.name} cannot train this model. "
            f"`model.name` must be one of {names}."
        )
    size = model.SIZES.get(raw.choice("model.size", ["", *model.SIZES], default=""))
    return options_of(model.Config, NO_OPTIONS, size, name=(str, ...), size=(str, ""))


class FeaturesSection(Options):
    """[model.features]: the folder's encoder is frozen, and a biLSTM on top of it is trained."""

    layers: str = FeaturesConfig.choice
    """first, last, second-to-last, sum, sum-last-4, concat-last-4, a number, or mix (learned)."""
    d_model: Size = FeaturesConfig.d_model
    lstm_layers: Size = FeaturesConfig.lstm_layers
    d_words: Count = FeaturesConfig.d_words
    """Of learned vectors of tokens beside the features; 0: none."""
    dropout: Probability = FeaturesConfig.dropout


class FineTuneSection(Options):
    """[model] of a training that starts from the weights of a folder, or of a name on the hub."""

    path: ModelSource
    layers: tuple[Count, ...] | None = None
    """The layers of an encoder that are kept, from 0, such as [0, 2, 4]; None: all of them."""
    dropout: Probability | None = None
    """None, here and in the next two options: as in the folder."""
    attention_dropout: Probability | None = None
    head_dropout: Probability | None = None
    features: FeaturesSection | None = None
    lora: LoraSection | None = None

    @property
    def name(self) -> str:
        """The name in reports: of the folder, or of the run that has the folder as its `model`."""
        path = Path(self.path)
        return path.parent.name if path.name == "model" and path.parent.name else path.name

    @property
    def size(self) -> str:
        """None: the folder says it."""
        return ""

    def changes(self) -> dict[str, Any]:
        """The options that differ from the folder's configuration."""
        return self.model_dump(exclude={"path", "layers", "features", "lora"}, exclude_none=True)


def build_model(section: Any, tokenizer: Tokenizer) -> nn.Module:
    """The model of a section [model], for the vocabulary of this tokenizer.

    Raises:
        ConfigError: the tokenizer lacks a special token, or options contradict each other.
    """
    if isinstance(section, FineTuneSection):
        return _model_to_fine_tune(section)
    model: Any = model_class(section.name)
    roles = {field.name: field.default for field in fields(model.Config)}
    special = {role: getattr(tokenizer, f"{role}_id") for role in {"pad", "bos", "eos"} & {*roles}}
    for role, number in special.items():
        if number is None and roles[role] is not None:
            raise ConfigError(f"The tokenizer has no {role} token, which the model needs.")
    options = section.model_dump(exclude={"name", "size"})
    _check_layers(options)
    try:
        config = model.Config(vocab_size=tokenizer.vocab_size, **options, **special)
        if torch.get_default_device().type != "meta":  # there, no model takes memory
            _check_memory(lambda: model(config))
        return model(config)
    except (ValueError, OverflowError, RuntimeError) as error:  # torch's own have the last type
        raise ConfigError(f"[model] {str(error).removeprefix('[model] ')}") from None


def _model_to_fine_tune(section: FineTuneSection) -> nn.Module:
    """The model of a folder, with the options that [model] changes."""
    folder_of(section.path)  # says that it is missing, before anything else is said of it
    if section.features and section.lora:
        raise ConfigError("[model.lora] cannot stand beside [model.features]: leave one out.")
    model = read_model(section.path, section.changes())
    if section.layers is not None:
        model = keep_layers(headed(model), section.layers)
    if section.features is None:
        return model
    options = section.features.model_dump()
    _check_layers(options, "model.features")
    options["choice"] = options.pop("layers")
    encoder = headed(model).encoder
    try:
        return Features.over(encoder, name_of(encoder), options)
    except ConfigError as error:
        raise ConfigError(f"[model.features] {error}") from None


def _check_layers(options: Mapping[str, Any], section: str = "model") -> None:
    """Raises ConfigError where there are more layers than any machine builds in a sensible time."""
    for name, value in options.items():
        if name.endswith("layers") and type(value) is int and value > MOST_LAYERS:
            said = f"[{section}] `{name}` must be at most {MOST_LAYERS:,}, but is {value}."
            raise ConfigError(said)


def _check_memory(make: Callable[[], nn.Module]) -> None:
    """Build the model without numbers, and compare its size with this machine's memory.

    Raises:
        ConfigError: weights and gradients do not fit into it, or are too large for torch.
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
class TrainingPlan:
    """A recipe with its task, built and ready to be trained.

    recorded: of a run whose data has moved, the recipe and the checksums with the original paths.
    """

    recipe: Any
    task: TaskVerbs
    recorded: tuple[Any, Mapping[str, str]] | None = None

    @cached_property
    def checksums(self) -> dict[str, str]:
        """The SHA-256 of each file of data."""
        return {name: hash_of(name) for name in self.recipe.data.files()}

    @property
    def lora(self) -> LoraSection | None:
        """The adapters that the recipe asks for."""
        section = self.recipe.model
        return section.lora if isinstance(section, FineTuneSection) else None

    def publish(self, folder: Path) -> None:
        """Write model/ of a run, which is `folder`, and adapter/ where the model has adapters.

        Models that were trained with it have folders beside it.
        """
        save(self.task, folder)
        for name, companion in self.task.companions().items():
            save(companion, folder.parent / name)
        if self.lora is not None:
            write_run_adapter(self.task, self.lora, self.recipe.model.path, folder.parent)

    def is_published(self, folder: Path) -> bool:
        """Whether model/ of a run, which is `folder`, and what stands beside it are complete."""
        beside = {folder.parent / name: one for name, one in self.task.companions().items()}
        written = (_is_published(one, path) for path, one in [(folder, self.task), *beside.items()])
        return all(written) and has_run_adapter(self.lora, folder.parent)

    def identity(self) -> dict[str, Any]:
        """What may not change between a run and its resumption."""
        recipe, checksums = self.recorded or (self.recipe, self.checksums)
        return {
            "recipe": recipe.model_dump(mode="json", exclude=OWN_TABLES),
            "data": dict(checksums),
            "tokenizer": self.task.tokenizer.fingerprint(),
            **self.task.identity(),
        }

    def defaults(self) -> dict[str, Any]:
        """What `identity` has for options that an earlier version did not have."""
        found = defaults_of(self.recipe)
        return {"recipe": {name: found[name] for name in found if name not in OWN_TABLES}}


def build_tokenizer(recipe: Any) -> Tokenizer:
    """The tokenizer that [tokenizer] describes, or that of the folder that [model] names.

    Raises:
        ConfigError: there is neither [tokenizer] nor [model] path.
    """
    if recipe.tokenizer is not None:
        return recipe.tokenizer.build(recipe.data.texts)
    if not isinstance(recipe.model, FineTuneSection):
        raise ConfigError(
            "A model with random weights needs a new tokenizer: describe it in [tokenizer], or "
            "fine-tune the model of a folder: [model] path."
        )
    return open_folder(recipe.model.path).tokenizer()


def plan(
    recipe: Any, tokenizer: Tokenizer | None = None, device: str | None = None
) -> TrainingPlan:
    """Read the data, learn the tokenizer unless it is given, and build the model from the seed.

    A warning tells what of the data is left out or truncated.

    device: as in `train`.

    Raises:
        ConfigError, DataError, CheckpointError: the recipe, the data or the folder to start from is
            wrong.
    """
    ops.load_kernels()
    kind = task_class(recipe.task)
    tokenizer = tokenizer or build_tokenizer(recipe)
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, tokenizer)
    if isinstance(recipe.model, FineTuneSection) and recipe.tokenizer is not None:
        model = for_vocabulary(model, recipe.model.path, tokenizer)
    if not kind.trains(type(model)) and not isinstance(model, EncoderWithHeads):
        others = (as_encoder(model), as_encoder_decoder(model))
        suited = [one for one in others if one is not None and kind.trains(type(one))]
        if not suited:
            name = type(model).__name__
            raise ConfigError(f"[model] {name} cannot learn the task {recipe.task}.")
        model = suited[0]
    model = model.to(device_for(device))
    made = TrainingPlan(recipe, kind.from_recipe(recipe, model, tokenizer))
    made.task.start_from_word_vectors(recipe)
    adapt(made.task, made.lora, model)
    for note in made.task.notes():
        warnings.warn(note, stacklevel=_level_of_caller())
    return made


def _level_of_caller() -> int:
    """How far above the function that asks the first frame outside this package is."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


# --------------------------------------------------------------------------------- runs


def train(
    recipe: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    device: str | None = None,
    show: Show | Progress = "auto",
    callbacks: Sequence[Callback] = (),
    pause_at: float | None = None,
    **options: Any,
) -> Run:
    """Train by a recipe, or by options in Python, in a new run folder.

    A run folder holds recipe.toml (the resolved recipe), model/, checkpoints/, metrics.jsonl and,
    when it is finished, report.html.

        train("recipes/demo.toml", epochs=3)
        train(task="classification", model="a folder or a name", train=dataframe, epochs=3)

    Args:
        recipe: a TOML file; None: the options say everything.
        overrides: `dotted.name=value`, as on the command line.
        out: the folder of the run; None: runs/NAME, and runs/NAME-2 where options in Python find a
            run there.
        device: "cpu", "cuda", "cuda:1"; None: a GPU, if there is one. It is no part of the recipe.
        show: the progress: "auto", "bar", "lines", "none" or a `regard.training.progress.Progress`.
        callbacks: are told what happens; see `regard.training.Callback`.
        pause_at: the fraction of the training, such as 0.25, after which it saves and stops;
            `resume` goes on, and ends as if it had not stopped.
        options: the options of a recipe: sections as mappings, or single options by name. `train`,
            `valid` and `test` are files, or data in memory (see `regard.data.in_memory.rows`),
            which are written into the run folder; `valid` may be a share of the training data.

    Raises:
        ConfigError: the recipe is wrong, or the folder holds a run already.
        DataError: a file of data is missing or malformed.
        Paused: at `pause_at`, when the training is saved.
        Others as `regard.training.train`.
    """
    check_show(show)
    check_callbacks(callbacks)
    begun: list[tuple[RawRecipe, TrainingPlan]] = []
    with connected(device) as own_device:

        def begin_here() -> Path:
            raw, made, folder = _begin(recipe, overrides, options, out, own_device, show)
            begun.append((raw, made))
            return folder

        folder = processes().agree(begin_here)
        raw, made = begun[0] if begun else _plan_in(folder, own_device)
        return run_plan(raw, made, folder, show, callbacks, pause_at)


def _begin(
    recipe: str | Path | None,
    overrides: Sequence[str],
    options: dict[str, Any],
    out: str | Path | None,
    device: str | None,
    show: Show | Progress,
) -> tuple[RawRecipe, TrainingPlan, Path]:
    """Begin a new run: see `train`. Its recipe, its plan and its folder."""
    device_for(device)  # raises an error before anything is written
    raw = keywords.recipe_from_keywords(recipe, overrides, options)
    schema = schema_of(raw)
    raw = keywords.with_options_in_sections(raw, schema)
    name = checked_recipe(
        keywords.with_placeholder_paths(raw, schema)
    ).name  # before anything is written
    folder = _new_folder(raw, name, out)
    with keywords.data_in_files(raw, schema, folder) as raw:
        with showing(show):
            made = begin(raw, folder, device)
        return raw, made, folder


def _plan_in(folder: Path, device: str | None) -> tuple[RawRecipe, TrainingPlan]:
    """The recipe and the plan of a run that another process has begun."""
    raw, recipe = open_recipe(folder / "recipe.toml")
    return raw, _plan_of_run(folder, raw, recipe, None, device)


def begin(raw: RawRecipe, folder: Path, device: str | None = None) -> TrainingPlan:
    """Write the recipe and the tokenizer of a new run into its folder; the plan of its training.

    device: as in `train`.

    Raises:
        ConfigError, DataError: as `train`.
    """
    checked = checked_recipe(raw)
    with raw.locating(type(checked)):
        made = plan(checked, device=device)
        made.task.check_test(checked)
        _check_new(folder)  # reading data takes long: another process may have been quicker
        folder.mkdir(parents=True, exist_ok=True)
        made.task.tokenizer.save(folder / "model")
        about = record(checked.seed, made.checksums) | {"notes": made.task.notes()}
        write(folder / "recipe.toml", checked, about)
    return made


def run_plan(
    raw: RawRecipe,
    made: TrainingPlan,
    folder: Path,
    show: Show | Progress,
    callbacks: Sequence[Callback],
    pause_at: float | None = None,
) -> Run:
    """Train what `begin` has planned."""
    with raw.locating(type(made.recipe)):
        verb = partial(training.train, pause_at=pause_at)
        return Run(folder, _train(verb, made, folder, show, callbacks))


def _new_folder(raw: RawRecipe, name: str, out: str | Path | None) -> Path:
    """The folder of a new run; `name` is that of its recipe.

    Raises:
        ConfigError: there is a run already; the recipe's file or `name` cannot be a folder's.
    """
    if out is not None:
        if not is_path(out):
            raise ConfigError(f"`out` must be the path of a folder, but is {out!r:.60}.")
        folder = Path(out)
        for parent in (folder, *folder.parents):
            if parent.exists() and not parent.is_dir():
                raise ConfigError(f"{folder} cannot be a folder: {parent} is a file.")
    else:
        folder = Path("runs") / name_of_run(raw.path or raw.text_at("task"), name)
        if raw.keywords and raw.path is None:
            others = (folder.with_name(f"{folder.name}-{n}") for n in count(2))
            return next(one for one in (folder, *islice(others, 10_000)) if not one.exists())
    _check_new(folder)
    return folder


def name_of_run(path: str | Path, name: str) -> str:
    """The name that a recipe gives its run: `name`, or that of its file.

    Raises:
        ConfigError: the file's name cannot be a folder's.
    """
    try:
        return plain_name(name or Path(path).stem)
    except ValueError as error:
        raise ConfigError(f"{path}: the name of this file {error}. Or set `name` in it.") from None


def _check_new(folder: Path) -> None:
    if (folder / "recipe.toml").exists():
        raise ConfigError(
            f"{folder} holds a run already. Go on with it (regard resume {folder}), or choose "
            "another folder (`out`, --out)."
        )


def resume(
    folder: str | Path,
    *,
    data_root: str | Path | None = None,
    device: str | None = None,
    show: Show | Progress = "auto",
    callbacks: Sequence[Callback] = (),
    pause_at: float | None = None,
) -> Result:
    """Resume a run from its newest intact checkpoint; it ends as if it had never stopped.

    In a finished run a missing model/ or report is written again; nothing else changes.

    data_root: the folder of the data, if it has moved. Each file that recipe.toml records is
        searched there by the end of its path, and must have the recorded checksum.
    device, show, callbacks, pause_at: as in `train`.

    Raises:
        Paused: at `pause_at`.
        CheckpointError: the folder is not a run, or its files are damaged.
        DataError: files of data are missing or, under `data_root`, differ; all are named.
        ConfigError: the recipe or the tokenizer has changed.
    """
    check_show(show)
    check_callbacks(callbacks)
    folder = Path(folder)
    if not (folder / "recipe.toml").exists():
        raise CheckpointError(f"{folder} is not a run: it has no recipe.toml.")
    raw, recipe = open_recipe(folder / "recipe.toml")
    with raw.locating(type(recipe)), connected(device) as own_device:
        with showing(show):
            made = _plan_of_run(folder, raw, recipe, data_root, own_device)
        verb = partial(
            training.resume,
            published=made.is_published,
            defaults=made.defaults(),
            pause_at=pause_at,
        )
        return _train(verb, made, folder, show, callbacks)


def _plan_of_run(
    folder: Path,
    raw: RawRecipe,
    recipe: Any,
    data_root: str | Path | None,
    device: str | None,
) -> TrainingPlan:
    """The plan of an existing run, its data at the recorded paths or under `data_root`."""
    recorded = checked(
        raw.run.get("data", {}), dict[str, str], folder / "recipe.toml", ConfigError, "run.data"
    )
    tokenizer = Tokenizer.load(folder / "model") if holds_tokenizer(folder / "model") else None
    gone = missing_files(recorded)
    if data_root is None and gone and (folder / keywords.DATA_FOLDER).is_dir():
        data_root = folder  # which holds data that were in memory, and has moved
    if data_root is not None:
        made = plan(relocate_data(recipe, recorded, Path(data_root)), tokenizer, device)
        return replace(made, recorded=(recipe, recorded))
    if gone:
        problem = f"the data of this run is no longer there: {', '.join(gone)}."
        hint = f"If it has moved, say where to: regard resume {folder} --data-root DIR"
        hint += f", or regard.resume({str(folder)!r}, data_root=DIR)."
        raise DataError(folder, None, problem, hint)
    return plan(recipe, tokenizer, device)


def holds_tokenizer(folder: Path) -> bool:
    """Whether a folder holds all files of a tokenizer."""
    holds = (folder / "tokenizer.json").exists() or is_marian(folder) or is_m2m_100(folder)
    return holds and (folder / "tokenizer_config.json").exists()


def _is_published(task: TaskVerbs, folder: Path) -> bool:
    """Whether a folder holds all files of a task."""
    wanted = ["config.json", "model.safetensors"]
    wanted += ["generation_config.json"] if task.decodes else []
    return holds_tokenizer(folder) and all((folder / name).exists() for name in wanted)


def _train(
    verb: Callable[..., Result],
    made: TrainingPlan,
    folder: Path,
    show: Show | Progress,
    callbacks: Sequence[Callback],
) -> Result:
    """Train or resume, and write the report unless it exists."""
    finished = (folder / RESULT).exists()
    if show == "auto" and in_notebook():
        show = notebook = NotebookProgress()
        callbacks = (*callbacks, notebook)
    result = verb(
        made.task,
        made.recipe.training,
        folder,
        seed=made.recipe.seed,
        identity=made.identity(),
        save=lambda model, folder: made.publish(folder),
        test=lambda: made.task.test(made.recipe),
        show=show,
        callbacks=callbacks,
    )
    processes().agree(lambda: _report(made, folder, result, finished))
    return result


def _report(made: TrainingPlan, folder: Path, result: Result, finished: bool) -> None:
    """Write the report unless it exists.

    finished: whether the run had been finished before; the task then holds the first weights.
    """
    if (folder / REPORT).exists():
        return
    if finished:
        made.task.model = merged(made.task.model)
        for name, one in {"model": made.task, **made.task.companions()}.items():
            load_weights(deployed(one.model), load(folder / name).model.state_dict())
        made.task.model.eval()
    write_report(folder, made.task, made.recipe, result)
