"""What must be equal so that a comparison is fair, and the errors where it is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from regard.data import hash_of
from regard.errors import ConfigError
from regard.experiments.recipe_options import read_recipe
from regard.experiments.run_folder import check_start
from regard.recipe import read
from regard.schema import change_lines, differences
from regard.tasks import task_class
from regard.training.options import DefaultEpochs

BUDGET = ("tokens", "epochs", "max_steps")
HINT = "Make them equal, for all recipes at once with name=value."
MAX_DIFFERENCES = 12  # in one message
SHARED = ("task", "data", "tokenizer", "decoding", "answers", "evaluation")


def conditions_of(recipe: Any, checksums: dict[str, str]) -> dict[str, Any]:
    """What must be equal: data by their content, tokenizer, decoding, scores, and the budget.

    checksums: SHA-256 of each file by its name; those of further files are added.
    """
    whole = recipe.model_dump(mode="json")
    shared = {name: whole[name] for name in SHARED if name in whole}
    for name in recipe.data.files():
        checksums.setdefault(name, hash_of(name))
    options = recipe.training
    budget = {name: getattr(options, name) for name in BUDGET if getattr(options, name)}
    if "max_steps" in budget:
        budget["batches a step"] = options.gradient_accumulation_steps
    shared["data"] = _by_content(shared["data"], checksums)
    score_options = task_class(recipe.task).score_options
    scored = {name: reduce(getitem, name.split("."), whole) for name in score_options}
    return {**shared, **scored, "budget": budget, "validation": asdict(options.validation)}


def scored_conditions(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Those on which the scores of a model depend that was trained in whatever way."""
    data, read_for_scores = conditions["data"], {"valid", "test"}
    if isinstance(data.get("valid"), float | dict):  # a part of the training data
        read_for_scores |= {"train", "split_seed", "stratified", "group"}
    without = ("budget", "validation", "tokenizer", "data")
    others = {name: value for name, value in conditions.items() if name not in without}
    return {**others, "data": {name: data[name] for name in data if name in read_for_scores}}


def check_equal(conditions: Mapping[str, Mapping[str, Any]], hint: str = HINT) -> None:
    """Check that the conditions of all recipes, by their names, are those of the first.

    hint: the end of the message, which says what to do.

    Raises:
        ConfigError: they are not; the first differences are named.
    """
    (first, expected), *others = conditions.items()
    problems = [
        f"\n  {key}: {before!r} in {first}, {now!r} in {name}"
        for name, other in others
        for key, before, now in differences(expected, other)
    ]
    if problems:
        listed = "".join(problems[:MAX_DIFFERENCES])
        raise ConfigError(
            f"these recipes cannot be compared fairly, because they differ in{listed}\n{hint}"
        )


def check_unchanged(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Check that a folder was started under the conditions of now.

    Raises:
        ConfigError: it was not; every difference is named.
    """
    if changes := change_lines(before, now):
        raise ConfigError(
            f"{folder} was started with other settings:{changes}\nUse the same settings again, "
            "remove the folder, or choose another one (`out`, --out)."
        )


def check_same_run(folder: Path, recipe: Any) -> None:
    """Check that a folder, where it exists, holds a run of this recipe on the same data.

    Raises:
        ConfigError: its recipe, its data or the model that it started from differ.
    """
    written = folder / "recipe.toml"
    if written.exists():
        before = read_recipe(written).model_dump(mode="json")
        now = recipe.model_dump(mode="json")
        for section in ("optimizer", "schedule"):
            # What is not set now was the model's default; the run has its value.
            resolved, asked = before["training"][section], now["training"][section]
            unset = {name: resolved[name] for name, value in asked.items() if value is None}
            now["training"][section] = asked | unset
        if isinstance(recipe.training.epochs, DefaultEpochs):
            now["training"]["epochs"] = before["training"]["epochs"]
        check_unchanged(before, now, folder)
        record = read(written).run
        checksums = record.get("data", {})
        check_unchanged(checksums, {name: hash_of(name) for name in checksums}, folder)
        check_start(recipe.model, record.get("start", {}), folder)


def _by_content(value: Any, checksums: Mapping[str, str]) -> Any:
    """A section with the checksum of each file for its name: a copy elsewhere is the same data."""
    if isinstance(value, dict):
        return {key: _by_content(item, checksums) for key, item in value.items()}
    if isinstance(value, list):
        return [_by_content(item, checksums) for item in value]
    return f"sha256:{checksums[value][:16]}" if value in checksums else value
