"""What is compared: recipes and run folders, and the files that stand for keywords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any

from regard.errors import ConfigError
from regard.experiments import keywords
from regard.experiments.compare.conditions import (
    HINT,
    check_equal,
    conditions_of,
    hint_for_runs,
    scored_conditions,
)
from regard.experiments.recipe_options import checked_recipe, read_recipe, schema_of
from regard.experiments.runs import name_of_run
from regard.recipe import write

RECIPES = "recipes"  # in the folder of a comparison; holds those that were keywords
Compared = str | PathLike[str] | Mapping[str, Any]
"""A recipe, a run or its folder, the keywords of `regard.train`, or the name of a model."""


@dataclass(frozen=True)
class Entry:
    """A recipe that is trained, or a run that was.

    path: of the recipe.  run: the folder of the run; None: the recipe is trained here.
    """

    path: Path
    recipe: Any
    run: Path | None = None


def entries_of(paths: Sequence[str | PathLike[str]], overrides: Sequence[str]) -> dict[str, Entry]:
    """The recipes and the runs, by their names.

    overrides: `dotted.name=value`, for the recipes.

    Raises:
        ConfigError: there is none, or two have the same name.
    """
    named: dict[str, Entry] = {}
    for path in map(Path, paths):
        if (path / "recipe.toml").exists():
            file = path / "recipe.toml"
            name, entry = path.resolve().name, Entry(file, read_recipe(file), path)
        else:
            recipe = read_recipe(path, overrides)
            name, entry = name_of_run(path, recipe.name), Entry(path, recipe)
        if name in named:
            raise ConfigError(
                f"{named[name].path} and {entry.path} are both named {name!r}. Give one of them "
                "another `name`."
            )
        named[name] = entry
    if not named:
        raise ConfigError("`recipes` must name at least one recipe, but is empty.")
    return named


def shared_conditions(entries: Mapping[str, Entry]) -> dict[str, Any]:
    """The conditions of all entries.

    Models that are started from folders have their own tokenizers, and runs were trained as they
    were: they share what their scores depend on.

    Raises:
        ConfigError: the entries differ in what must be equal, or have no data to be scored with.
    """
    checksums: dict[str, str] = {}
    conditions = {name: conditions_of(one.recipe, checksums) for name, one in entries.items()}
    hint = HINT
    if any(one.run for one in entries.values()):
        conditions = {name: scored_conditions(one) for name, one in conditions.items()}
        hint = hint_for_runs(conditions.values())
    tokenizers = {
        name: {"tokenizer": one.pop("tokenizer", None)} for name, one in conditions.items()
    }
    check_equal(conditions, hint)
    if not any(one.recipe.data.valid or one.recipe.data.test for one in entries.values()):
        raise ConfigError("Models are compared by their scores: give `valid` or `test` data.")
    trained = {name: one for name, one in tokenizers.items() if one["tokenizer"] is not None}
    if trained:
        check_equal(trained)
    return {**next(iter(conditions.values())), **next(iter((trained or tokenizers).values()))}


def in_files(recipes: Sequence[Compared], options: Mapping[str, Any], out: Path) -> list[Path]:
    """The recipes as files and folders; those from keywords are written into the folder.

    options: keywords for every recipe.

    Raises:
        ConfigError: a recipe is wrong, or the folder holds other data.
    """
    if isinstance(recipes, str | PathLike | Mapping):
        raise ConfigError(f"`recipes` must be a list, but is {recipes!r:.60}.")
    found: list[Path] = []
    for one in recipes:
        path, given = _taken_apart(one)
        if path is None or options and not (path / "recipe.toml").exists():
            has_runs = bool(found) or any(out.glob("*/recipe.toml"))
            path = _written(
                path, {**options, **given}, out, [file.stem for file in found], has_runs
            )
        found.append(path)
    return found


def _taken_apart(one: Compared) -> tuple[Path | None, Mapping[str, Any]]:
    """The file or the run, None where there is none; and keywords."""
    if isinstance(one, Mapping):
        return None, one
    path = Path(one)
    if path.suffix == ".toml" or (path / "recipe.toml").exists():
        return path, {}
    return None, {"model": str(path)}


def _written(
    path: Path | None, options: Mapping[str, Any], out: Path, names: Sequence[str], has_runs: bool
) -> Path:
    """The file with a recipe and keywords, its data in files, too."""
    raw = keywords.recipe_from_keywords(path, options)
    schema = schema_of(raw)
    raw = keywords.with_options_in_sections(raw, schema)
    checked_recipe(keywords.with_placeholder_paths(raw, schema))  # before data are written
    recipe = checked_recipe(keywords.data_in_shared_files(raw, schema, out, has_runs))
    name = recipe.name or (path.stem if path else recipe.model.name)
    numbered = (name if number == 1 else f"{name}-{number}" for number in count(1))
    file = out / RECIPES / f"{next(one for one in numbered if one not in names)}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, recipe)
    return file
