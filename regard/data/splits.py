"""Validation data taken from the training data: at random, by class, or by group.

A split is a share of the rows, drawn once. Folds are disjoint parts that together are all rows:
each is the validation data of one training, the others are what it learns from.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from regard.errors import ConfigError

Mask = np.ndarray  # (N,) bool
FoldIndices = np.ndarray  # (N,) int: for each row its fold, from 0


@dataclass(frozen=True)
class Fold:
    """The fold `fold`, from 1, of `of` folds."""

    fold: int
    of: int

    def mask(self, folds: FoldIndices) -> Mask:
        """True for the rows of this fold."""
        return folds == self.fold - 1


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


def random_folds(count: int, folds: int, seed: int) -> FoldIndices:
    """Rows in random order, dealt one after the other: sizes differ by one at most.

    Raises:
        ConfigError: there are fewer rows than folds.
    """
    _check_enough(count, "rows", folds)
    return _dealt(np.random.default_rng(seed).permutation(count), folds)


def stratified_folds(classes: Sequence[Hashable], folds: int, seed: int) -> FoldIndices:
    """As `random_folds`, and the rows of each class in two folds differ by one at most too.

    The rows are dealt class by class, each class in random order.
    """
    _check_enough(len(classes), "rows", folds)
    generator = np.random.default_rng(seed)
    order = [generator.permutation(rows) for rows in _members(classes).values()]
    return _dealt(np.concatenate(order), folds)


def group_folds(groups: Sequence[Hashable], folds: int, seed: int) -> FoldIndices:
    """All rows of a group are in one fold; folds have about equal numbers of rows.

    Groups go, the largest first and equally large ones in random order, to the fold that has the
    fewest rows.

    Raises:
        ConfigError: there are fewer groups than folds.
    """
    members = list(_members(groups).values())
    _check_enough(len(members), "groups", folds)
    order = np.random.default_rng(seed).permutation(len(members)).tolist()
    found, sizes = np.zeros(len(groups), dtype=int), [0] * folds
    for index in sorted(order, key=lambda index: -len(members[index])):
        smallest = sizes.index(min(sizes))
        found[members[index]] = smallest
        sizes[smallest] += len(members[index])
    return found


def consecutive_folds(count: int, folds: int) -> FoldIndices:
    """Rows that follow one another: of running text, whose lines belong together."""
    _check_enough(count, "rows", folds)
    return np.arange(count) * folds // count


def last_split(count: int, share: float) -> Mask:
    """True for the last rows: of running text, whose lines belong together."""
    chosen = np.arange(count) >= count - _part(count, share)
    return _both_sides(chosen, share)


def _dealt(order: np.ndarray, folds: int) -> FoldIndices:
    """Rows in this order, the first to fold 0, the next to fold 1, and so on in a circle."""
    found = np.empty(len(order), dtype=int)
    found[order] = np.arange(len(order)) % folds
    return found


def _check_enough(count: int, what: str, folds: int) -> None:
    if count < folds:
        raise ConfigError(
            f"[data] `valid` is one of {folds} folds, but the training data have {count} "
            f"{what if count != 1 else what[:-1]}, "
            "and each fold needs one. Choose fewer folds."
        )


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
