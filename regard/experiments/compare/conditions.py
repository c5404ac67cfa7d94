"""What must be equal so that a comparison is fair, and what happens where it is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.data import hash_of
from regard.errors import ConfigError
from regard.tasks import task_class

BUDGET = ("tokens", "epochs", "updates")
SHARED = ("task", "data", "tokenizer", "decoding", "answers", "evaluation")


def conditions_of(recipe: Any, hashes: dict[str, str]) -> dict[str, Any]:
    """What must be equal: data by their content, tokenizer, search, scores, and the budget.

    hashes: SHA-256 of each file by its name; those that are met for the first time are added.
    """
    shared = recipe.model_dump(mode="json", include=set(SHARED))
    for name in task_class(recipe.task).files(recipe):
        hashes.setdefault(name, hash_of(name))
    options = recipe.training
    budget = {name: getattr(options, name) for name in BUDGET if getattr(options, name)}
    if "updates" in budget:
        budget["batches an update"] = options.accumulate
    shared["data"] = _by_content(shared["data"], hashes)
    return {**shared, "budget": budget, "validation": asdict(options.validation)}


def refuse_unfair(conditions: Mapping[str, dict[str, Any]]) -> None:
    """Raises ConfigError naming every condition in which the recipes differ."""
    names = list(conditions)
    first = dict(_leaves(conditions[names[0]]))
    problems = []
    for name in names[1:]:
        other = dict(_leaves(conditions[name]))
        for key in dict.fromkeys([*first, *other]):
            if first.get(key) != other.get(key):
                told = f"{first.get(key)!r} in {names[0]}, {other.get(key)!r} in {name}"
                problems.append(f"{key}: {told}")
    if problems:
        raise ConfigError(
            "these recipes cannot be compared fairly, because they differ in\n  "
            + "\n  ".join(problems)
            + "\nMake them equal, for all at once with name=value."
        )


def _by_content(value: Any, hashes: Mapping[str, str]) -> Any:
    """A section with each file's name replaced by its sum: a copy elsewhere is the same data."""
    if isinstance(value, dict):
        return {key: _by_content(one, hashes) for key, one in value.items()}
    if isinstance(value, list):
        return [_by_content(one, hashes) for one in value]
    return f"sha256:{hashes[value][:16]}" if value in hashes else value


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], place: Path) -> None:
    """What `place` was begun with must be what is asked for now."""
    then, asked = dict(_leaves(before)), dict(_leaves(now))
    problems = [
        f"{key}: was {then.get(key)!r}, is {asked.get(key)!r}"
        for key in dict.fromkeys([*then, *asked])
        if then.get(key) != asked.get(key)
    ]
    if problems:
        raise ConfigError(
            f"{place} was begun under other conditions:\n  "
            + "\n  ".join(problems)
            + "\nPut them back, remove the folder, or choose another one with --out."
        )
