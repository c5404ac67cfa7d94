"""Recipes with the options of their task and of their model, checked; and recipes from keyword
arguments in Python, with data in memory instead of files.

    regard.train(task="classification", model="microsoft/MiniLM-L12-H384-uncased",
                 train=dataframe, valid=0.1, epochs=3, learning_rate=5e-5)

A keyword is the name of a section (`training={"epochs": 3}`) or of an option, which is put into the
section that has it. Data in memory are written into the folder of the run, so that the run can be
resumed and repeated like every other.
"""

import filecmp
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from regard import habit_names
from regard.checkpoints.adapters import AdapterOptions
from regard.data import in_memory
from regard.data.readers import Numbered, open_table, reading_memory
from regard.errors import ConfigError, DataError
from regard.models import NAMED, model_class
from regard.models.composed import FeaturesConfig
from regard.models.config import CombineFeatures, Count, FeatureLayers, Probability, Size
from regard.models.protocols import Model
from regard.recipe import (
    ModelSource,
    Options,
    RawRecipe,
    Recipe,
    full_name,
    names_in,
    options_of,
    parse,
    read,
    section_class,
    sections_of,
    with_section,
)
from regard.tasks import TASKS, task_class
from regard.tasks.sections import DataSection, NewTokenizerRecipe
from regard.tasks.task import Task
from regard.text import Tokenizer
from regard.training import TrainingOptions
from regard.training.options import DefaultEpochs, without_effect

# Fields of a model's configuration that [model] cannot set: the tokenizer, pruning and counting do.
NO_OPTIONS = ("vocab_size", "pad", "bos", "eos", "pruned", "ngrams")


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
        training = replace(recipe.training, epochs=epochs)
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
        raise ConfigError(f"{raw.location('task')}: nothing trains the task {task.name!r} here.")
    section = FineTuneSection if raw.has("model.path") else _model_section(raw, task)
    return _with_sections(task.Recipe, section)


@lru_cache(256)  # of pairs of a task and a model: making the class takes longer than checking
def _with_sections(recipe: type[Recipe], model: type[Options]) -> type[Recipe]:
    whole = with_section(recipe, "model", model)
    return with_section(whole, "training", TrainingOptions, TrainingOptions())


def _model_section(raw: RawRecipe, task: Task) -> type[Options]:
    """[model] of a training that starts from random weights: the options of the model's class."""
    model = model_class(raw.choice("model.name", NAMED))
    if not task.trains(model):
        names = ", ".join(name for name in NAMED if task.trains(model_class(name)))
        where, hint = raw.location("model.name"), f"`model.name` must be one of {names}."
        raise ConfigError(f"{where}: {task.name} cannot train this model. {hint}")
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


# ---- keyword arguments

PARTS = ("train", "valid", "test")
PATHS = (*PARTS, "model", "path", "word_vectors", "images", "features")  # options that name files
DATA_FOLDER = "data"  # in a run's folder; holds data that were in memory


def recipe_from_keywords(
    path: str | PathLike[str] | None, keywords: Mapping[str, Any]
) -> RawRecipe:
    """The recipe of a file, or an empty one, with the values of keywords in its tables.

    Data in memory stay in the place of the paths of files; `data_in_files` replaces them.

    Raises:
        ConfigError: `path` is not a path, or a keyword has a value that no recipe can have.
    """
    if path is not None and not in_memory.is_path(path):
        raise ConfigError(
            f"A recipe must be a path, but is {in_memory.source_name(path)}. Data: train=..."
        )
    raw = parse("") if path is None else read(path)
    tables = {**raw.tables}
    options = habit_names.recipe({k: value for k, value in keywords.items() if value is not None})
    for name, value in options.items():
        before = None if isinstance(keywords.get(name), str) else tables.get(name)  # replaced
        tables[name] = _merged(before, _recipe_value(name, value))
    if isinstance(tables.get("model"), str):
        tables["model"] = {"path": tables["model"]}
    return replace(raw, tables=tables, keywords=tuple(options))


def _recipe_value(name: str, value: Any) -> Any:
    """The value of an option as a TOML value; data in memory unchanged, but iterators as lists.

    Raises:
        ConfigError: a recipe cannot have this value.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, PathLike) or name in PATHS and isinstance(value, str):
        return _path_from_here(value)
    if name in PARTS:
        value = list(value) if isinstance(value, Iterator) else value
        if isinstance(value, list | tuple) and any(isinstance(item, PathLike) for item in value):
            value = [str(item) if isinstance(item, PathLike) else item for item in value]
        several = isinstance(value, list | tuple) and value and isinstance(value[0], str)
        if several and os.path.isabs(_path_from_here(value[0])):  # files, and no texts
            return [_path_from_here(item) for item in value]
        return value
    if isinstance(value, Mapping):
        return {str(key): _recipe_value(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_recipe_value(name, item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    if name == "tokenizer" and isinstance(value, Tokenizer):
        return value
    raise ConfigError(f"`{name}` must be a TOML value, but is {in_memory.source_name(value)}.")


def _path_from_here(path: str | PathLike[str]) -> str:
    """The path as a text: absolute where there is such a file or folder, since a relative path in a
    recipe starts in the folder of the recipe.
    """
    try:
        return str(Path(path).absolute()) if path and Path(path).exists() else str(path)
    except (OSError, ValueError):  # a text too long for a path, or with a null character
        return str(path)


def _merged(before: Any, value: Any) -> Any:
    if isinstance(before, Mapping) and isinstance(value, Mapping):
        return {**before, **{name: _merged(before.get(name), item) for name, item in value.items()}}
    return value


def with_options_in_sections(raw: RawRecipe, schema: Any) -> RawRecipe:
    """The same recipe, with each keyword that names an option moved into its section.

    Raises:
        ConfigError: no section has an option of this name, or several have.
    """
    top, tables = names_in(schema, ""), dict(raw.tables)
    for name in {*top} & {*raw.keywords} & {*sections_of(schema)}:
        if name in tables and not isinstance(tables[name], Mapping | Tokenizer):
            message = (
                f"`{name}` is a section: write {name}={{...}}, but it is {tables[name]!r:.60}."
            )
            raise ConfigError(message)
    for name in [name for name in raw.keywords if name not in top and name in tables]:
        _set_option(tables, full_name(schema, name).split("."), tables.pop(name))
    return replace(raw, tables=tables)


def _set_option(tables: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for section in path[:-1]:
        tables[section] = tables = {**tables.get(section, {})}
    tables[path[-1]] = _merged(tables.get(path[-1]), value)


# ---- data in memory


def parts_in_memory(raw: RawRecipe, data_section: Any) -> dict[str, Any]:
    """The parts of the data that are in memory: "train", "valid", "test"."""
    if not {"data", *PARTS} & {*raw.keywords}:  # all data are named in the recipe's file
        return {}
    data = raw.tables.get("data", {})
    parts = {part: data[part] for part in PARTS if part in data}
    return {part: rows for part, rows in parts.items() if not _names_files(rows, data_section)}


def with_placeholder_paths(raw: RawRecipe, schema: Any) -> RawRecipe:
    """The recipe with paths where data in memory are, so that its options can be checked."""
    if isinstance(raw.tables.get("tokenizer"), Tokenizer):
        raw = replace(raw, tables={**raw.tables, "tokenizer": {"path": "tokenizer"}})
    data_section = section_class(schema, "data")
    paths = {
        part: _path_option(Path(part), data_section) for part in parts_in_memory(raw, data_section)
    }
    if not paths:
        return raw
    return replace(raw, tables={**raw.tables, "data": {**raw.tables["data"], **paths}})


def _path_option(path: Path, data_section: Any) -> Any:
    """A path as the value of an option of [data]."""
    return [str(path.absolute())] if data_section.several_files else str(path.absolute())


def _names_files(value: Any, data_section: Any) -> bool:
    """Whether this is a path, several paths, or a part of the training data to validate on."""
    several = data_section.several_files and isinstance(value, list | tuple)
    if several and data_section.of_documents and any(map(in_memory.is_running_text, value)):
        return False
    return (
        in_memory.is_path(value)
        or _splits_train(value)
        or several
        and all(map(in_memory.is_path, value))
    )


def _splits_train(value: Any) -> bool:
    """Whether this is a share, 0.1, or a fold, {"fold": 1, "of": 5}, and not a table of columns."""
    fold = isinstance(value, Mapping) and value and all(type(n) is int for n in value.values())
    return isinstance(value, int | float) or bool(fold)


@contextmanager
def data_in_files(
    raw: RawRecipe, schema: Any, folder: Path, has_runs: bool = False
) -> Iterator[RawRecipe]:
    """The recipe with the paths of files instead of data in memory, of which they are copies: for
    resuming, and for the workers of a study. In the body of the `with` statement rows are read
    from memory; running text is read from its file.

    If the body raises an error, the files are removed.

    Args:
        schema: that of the recipe; its [data] tells the format of the files.
        folder: the folder of the run, or of a study.
        has_runs: whether runs have read the files, which must then hold the same data.

    Raises:
        DataError: the data have no rows, or a row lacks a value.
        ConfigError: the names of the columns do not tell which to read; or the files hold other
            data.
    """
    data_section = section_class(schema, "data")
    parts, existed = parts_in_memory(raw, data_section), folder.exists()
    raw = _with_saved_tokenizer(raw, schema, folder)
    if not parts:
        yield raw
        return
    data = dict(raw.tables["data"])
    data |= _column_options(data, next(iter(parts.values())), data_section)
    sources: dict[str, str] = {}  # path -> the name of its data in errors
    copied: dict[str, in_memory.Items] = {}  # path -> rows
    new = folder / DATA_FOLDER / "new"
    try:
        for part, rows in parts.items():
            path = _data_file(folder, part, data_section)
            fresh = new.absolute() / path.name
            name = f"{part}={in_memory.source_name(rows)}"
            sources |= dict.fromkeys((str(path), str(fresh)), name)
            if data_section.of_documents:
                rows = _documents(rows, raw.tables["data"].get("field"), name)
            items = in_memory.Items(rows, name)
            in_memory.write_copy(items, fresh, _written_columns(data, part))
            if fresh.suffix == ".jsonl":
                copied[str(path)] = items
            if has_runs and not (path.exists() and filecmp.cmp(fresh, path, shallow=False)):
                other = "Give the same data, or choose another folder (`out`, --out)."
                raise ConfigError(f"{folder} was started with other data as `{part}`. {other}")
            data[part] = _path_option(path, data_section)
        for fresh in [*new.iterdir()]:
            fresh.replace(new.parent / fresh.name)
        new.rmdir()
        with reading_memory(copied):
            yield replace(raw, tables={**raw.tables, "data": data})
    except BaseException as error:
        written = new if has_runs else folder / DATA_FOLDER if existed else folder
        shutil.rmtree(written, ignore_errors=True)
        if isinstance(error, DataError) and error.path in sources:  # a file that is removed
            source = sources[error.path]
            raise DataError(source, error.line, error.problem, error.hint) from None
        raise


def _with_saved_tokenizer(raw: RawRecipe, schema: Any, folder: Path) -> RawRecipe:
    """The recipe with the path of a tokenizer that was given as an object, and is written there."""
    tokenizer = raw.tables.get("tokenizer")
    if not isinstance(tokenizer, Tokenizer):
        return raw
    path = (folder / DATA_FOLDER / "tokenizer").absolute()
    if issubclass(schema, NewTokenizerRecipe):
        tokenizer = schema.new_tokenizer.completed(tokenizer)
    tokenizer.save(path)
    return replace(raw, tables={**raw.tables, "tokenizer": {"path": str(path)}})


def _data_file(folder: Path, part: str, data_section: Any) -> Path:
    """Where a part of the data is written in a folder."""
    path = (folder / DATA_FOLDER / part).absolute()
    lines = data_section.running_text and not data_section.of_documents
    return path.with_suffix(".txt" if lines else ".jsonl")


def _documents(rows: Any, field: str | int | None, name: str) -> Any:
    """Rows with the text of a document each, in this column or in the only one."""

    def texts(numbered: Numbered) -> Numbered:
        for line, row in numbered:
            yield line, {in_memory.DOCUMENT: in_memory.single_text(row, (name, line))}

    return open_table(in_memory.Items(rows, name), () if field is None else (field,)).mapped(texts)


def _written_columns(data: Mapping[str, Any], part: str) -> list[str]:
    """The columns of a part of the data that are written; []: all of them.

    The column of groups is needed only where `valid` is a part of the training data.
    """
    group = data.get("group") if part == "train" and _splits_train(data.get("valid")) else None
    columns = in_memory.columns_of_part(data.get("columns", []), part)
    besides = [*data.get("target_columns", []), *([] if group is None else [group])]
    return [*columns, *(besides if columns else [])]


def _column_options(data: Mapping[str, Any], first: Any, data_section: Any) -> dict[str, Any]:
    """The options that name columns, by name; {} if the section has no such options. Beside a
    training file they are those of its header, which is read later.

    Args:
        first: the first part of the data that is in memory.

    Raises:
        ConfigError: the columns are not given, and their names do not tell which they are.
    """
    if data_section.of_documents:
        return {"field": in_memory.DOCUMENT}
    if data_section.running_text or "columns" not in data_section.model_fields:
        return {}
    names, group = in_memory.column_names(first), data.get("group")
    columns = data.get("columns")

    def by_name(column: Any) -> str:
        is_number = isinstance(column, int) and 0 <= column < len(names)
        return names[column] if is_number else str(column)

    targets = data.get("target_columns", [])
    besides = [*targets, *([] if group is None else [group])]
    besides += [by_name(item) for item in besides]
    if columns is None and not in_memory.is_path(data.get("train")):
        columns = (in_memory.infer_text_columns if targets else in_memory.infer_columns)(
            first, besides
        )
    options: dict[str, Any] = {"columns": [by_name(item) for item in columns]} if columns else {}
    options |= {"target_columns": [by_name(item) for item in targets]} if targets else {}
    return options if group is None else options | {"group": by_name(group)}
