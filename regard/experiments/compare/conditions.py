"""What must be equal so that a comparison is fair, and the errors where it is not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from regard.data import hash_of
from regard.errors import ConfigError
from regard.experiments.recipe_options import read_recipe
from regard.experiments.start_model import check_start
from regard.recipe import read
from regard.tasks import task_class
from regard.training.options import DefaultEpochs

BUDGET = ("tokens", "epochs", "max_steps")
HINT = "Make them equal, for all recipes at once with name=value."
SHARES_HINT = (
    "`valid` is a share of the training data, and these are different tables: the models were "
    "validated on different rows. Train them again with one file as `valid` for all."
)
MOST_SHOWN = 12  # differences in one message
SHARED = ("task", "data", "tokenizer", "decoding", "answers", "evaluation")


def conditions_of(recipe: Any, checksums: dict[str, str]) -> dict[str, Any]:
    """What must be equal: data by their content, tokenizer, decoding, scores, and the budget.

    checksums: SHA-256 of each file by its name; those of further files are added.
    """
    shared = recipe.model_dump(mode="json", include=set(SHARED))
    for name in recipe.data.files():
        checksums.setdefault(name, hash_of(name))
    options = recipe.training
    budget = {name: getattr(options, name) for name in BUDGET if getattr(options, name)}
    if "max_steps" in budget:
        budget["batches a step"] = options.gradient_accumulation_steps
    shared["data"] = _by_content(shared["data"], checksums)
    scored = _options(recipe, task_class(recipe.task).score_options)
    return {**shared, **scored, "budget": budget, "validation": asdict(options.validation)}


def scored_conditions(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Those on which the scores of a model depend that was trained in whatever way."""
    data = conditions["data"]
    split = (
        {"train", "split_seed", "stratified", "group"} if _is_split(data.get("valid")) else set()
    )
    kept = {name: data[name] for name in data if name in {"valid", "test", *split}}
    without = ("budget", "validation", "tokenizer", "data")
    return {**{n: one for n, one in conditions.items() if n not in without}, "data": kept}


def _is_split(valid: Any) -> bool:
    """Whether the validation data are a part of the training data."""
    return isinstance(valid, float | dict)


def _options(recipe: Any, names: Sequence[str]) -> dict[str, Any]:
    """The values of options by their dotted names."""
    whole = recipe.model_dump(mode="json")
    return {name: reduce(getitem, name.split("."), whole) for name in names}


def hint_for_runs(scored: Iterable[Mapping[str, Any]]) -> str:
    """What to do where the `scored_conditions` of runs differ."""
    trained_on = {repr(one["data"].get("train")) for one in scored}
    return SHARES_HINT if len(trained_on) > 1 else HINT


def check_equal(conditions: Mapping[str, Mapping[str, Any]], hint: str = HINT) -> None:
    """Check that the conditions of all recipes, by their names, are those of the first.

    hint: the end of the message, which says what to do.

    Raises:
        ConfigError: they are not; every difference is named.
    """
    (first, expected), *others = conditions.items()
    problems = [
        (key, f"{key}: {one!r} in {first}, {two!r} in {name}")
        for name, other in others
        for key, one, two in differences(expected, other)
    ]
    if problems:
        order = ("task", "data", "budget")  # differences that explain others come first
        problems.sort(key=lambda one: [one[0].split(".")[0] != name for name in order])
        left = len(problems) - MOST_SHOWN
        more = f"\n  and {left} other option{'s' if left > 1 else ''}" if left > 0 else ""
        raise ConfigError(
            "these recipes cannot be compared fairly, because they differ in\n  "
            + "\n  ".join(text for _, text in problems[:MOST_SHOWN])
            + more
            + f"\n{hint}"
        )


def check_unchanged(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Check that a folder was started under the conditions of now.

    Raises:
        ConfigError: it was not; every difference is named.
    """
    problems = [f"{key}: was {one!r}, is {two!r} now" for key, one, two in differences(before, now)]
    if problems:
        raise ConfigError(
            f"{folder} was started with other settings:\n  "
            + "\n  ".join(problems)
            + "\nUse the same settings again, remove the folder, or choose another one (`out`, "
            "--out)."
        )


def check_same_run(folder: Path, recipe: Any) -> None:
    """Check that a folder, where it exists, holds a run of this recipe on the same data.

    Raises:
        ConfigError: its recipe or its data differ.
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
        recorded = read(written).run
        checksums = recorded.get("data", {})
        check_unchanged(checksums, {name: hash_of(name) for name in checksums}, folder)
        check_start(recipe.model, recorded.get("start", {}), folder)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, value in one, value in the other); None where there is none."""
    values, others = dict(_leaves(one)), dict(_leaves(other))
    for key in dict.fromkeys([*values, *others]):
        if values.get(key) != others.get(key):
            yield key, values.get(key), others.get(key)


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _by_content(value: Any, checksums: Mapping[str, str]) -> Any:
    """A section with the checksum of each file for its name: a copy elsewhere is the same data."""
    if isinstance(value, dict):
        return {key: _by_content(one, checksums) for key, one in value.items()}
    if isinstance(value, list):
        return [_by_content(one, checksums) for one in value]
    return f"sha256:{checksums[value][:16]}" if value in checksums else value
