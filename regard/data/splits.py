"""Validation data taken from the training data: at random, by class, or by group."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from regard.errors import ConfigError

Mask = np.ndarray  # (N,) bool


def random_split(count: int, share: float, seed: int) -> Mask:
    """True for the rows of the validation data: a share of `count` rows drawn without replacement.

    Raises:
        ConfigError: one of the two sides would have no row.
    """
    order = np.random.default_rng(seed).permutation(count)
    chosen = np.zeros(count, dtype=bool)
    chosen[order[: _part(count, share)]] = True
    return _both_sides(chosen, share)


def stratified_split(classes: Sequence[Hashable], share: float, seed: int) -> Mask:
    """As `random_split`, each class with its share of the rows, as nearly as whole rows allow.

    The rows that rounding down leaves over go to the classes with the largest remainders.
    """
    members = _members(classes)
    parts = {name: len(rows) * share for name, rows in members.items()}
    counts = {name: int(part) for name, part in parts.items()}
    left = _part(len(classes), share) - sum(counts.values())
    by_remainder = sorted(parts, key=lambda name: counts[name] - parts[name])
    for name in by_remainder[: max(0, left)]:
        counts[name] += 1
    generator = np.random.default_rng(seed)
    chosen = np.zeros(len(classes), dtype=bool)
    for name, rows in members.items():
        chosen[generator.permutation(rows)[: counts[name]]] = True
    return _both_sides(chosen, share)


def group_split(groups: Sequence[Hashable], share: float, seed: int) -> Mask:
    """As `random_split`, but all rows of a group are on one side, such as those of one author.

    Groups are drawn until the validation data have their share of the rows; one is left to train
    on.

    Raises:
        ConfigError: there is only one group.
    """
    members = _members(groups)
    if len(members) == 1:
        raise ConfigError(
            "[data] `group` names a column with one group only, whose rows cannot be on two sides. "
            "Is it the right column?"
        )
    names = list(members)
    chosen = np.zeros(len(groups), dtype=bool)
    for index in np.random.default_rng(seed).permutation(len(names))[:-1]:
        if chosen.sum() >= share * len(groups):
            break
        chosen[members[names[index]]] = True
    return _both_sides(chosen, share)


def last_split(count: int, share: float) -> Mask:
    """True for the last rows: of running text, whose lines belong together."""
    chosen = np.arange(count) >= count - _part(count, share)
    return _both_sides(chosen, share)


def _part(count: int, share: float) -> int:
    return max(1, round(count * share))


def _members(names: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = {}
    for index, name in enumerate(names):
        found.setdefault(name, []).append(index)
    return found


def _both_sides(chosen: Mask, share: float) -> Mask:
    if chosen.all() or not chosen.any():
        raise ConfigError(
            f"[data] `valid` is {share:g} of {len(chosen)} rows, which leaves no row "
            f"{'to train on' if chosen.all() else 'to validate on'}. Give more rows, or another "
            "share."
        )
    return chosen
