"""Validation data taken from the training data: at random, by class, or by group.

A split is a share of the rows, drawn once. Folds are disjoint parts that together are all rows:
each is the validation data of one training, whose training data are the others.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from regard.errors import ConfigError

Mask = np.ndarray  # (N,) bool
FoldIndices = np.ndarray  # (N,) int: for each row its fold, from 0


@dataclass(frozen=True)
class Fold:
    """Fold number `fold`, from 1, of `of` folds."""

    fold: int
    of: int

    def mask(self, folds: FoldIndices) -> Mask:
        """True for the rows of this fold."""
        return folds == self.fold - 1


def random_split(count: int, share: float, seed: int) -> Mask:
    """A mask (N,), true for the validation data: a random share of N = `count` rows.

    Raises:
        ConfigError: no row would be left for the training or for the validation.
    """
    order = np.random.default_rng(seed).permutation(count)
    chosen = np.zeros(count, dtype=bool)
    chosen[order[: _rows_of_share(count, share)]] = True
    return _checked_mask(chosen, share)


def stratified_split(classes: Sequence[Hashable], share: float, seed: int) -> Mask:
    """As `random_split`, with this share of the rows of each class; `classes`: (N,), of the rows.

    Numbers of rows are rounded down; the rows that are missing then come from the classes with the
    largest remainders.
    """
    members = _rows_by_name(classes)
    parts = {name: len(rows) * share for name, rows in members.items()}
    counts = {name: int(part) for name, part in parts.items()}
    left = _rows_of_share(len(classes), share) - sum(counts.values())
    by_remainder = sorted(parts, key=lambda name: counts[name] - parts[name])
    for name in by_remainder[:left]:
        counts[name] += 1
    generator = np.random.default_rng(seed)
    chosen = np.zeros(len(classes), dtype=bool)
    for name, rows in members.items():
        chosen[generator.permutation(rows)[: counts[name]]] = True
    return _checked_mask(chosen, share)


def group_split(groups: Sequence[Hashable], share: float, seed: int) -> Mask:
    """As `random_split`, but all rows of a group, such as those of one author, stay together.

    Groups are drawn until the validation data have their share of the rows; at least one group is
    left for the training. `groups`: (N,), of the rows.

    Raises:
        ConfigError: there is only one group.
    """
    members = _rows_by_name(groups)
    if len(members) == 1:
        raise ConfigError(
            "[data] `valid` is a share, but all rows belong to one group (of captions, one image; "
            "otherwise [data] `group`), which cannot be divided. Give more groups, or files."
        )
    names = list(members)
    chosen = np.zeros(len(groups), dtype=bool)
    for index in np.random.default_rng(seed).permutation(len(names))[:-1]:
        if chosen.sum() >= share * len(groups):
            break
        chosen[members[names[index]]] = True
    return _checked_mask(chosen, share)


def random_folds(count: int, folds: int, seed: int) -> FoldIndices:
    """The fold of each row: rows in random order, round robin, so sizes differ by one at most.

    Raises:
        ConfigError: there are fewer rows than folds.
    """
    _check_enough(count, "rows", folds)
    return _round_robin(np.random.default_rng(seed).permutation(count), folds)


def stratified_folds(classes: Sequence[Hashable], folds: int, seed: int) -> FoldIndices:
    """As `random_folds`; the numbers of rows of a class in two folds differ by one at most too.

    The rows are distributed round robin, class by class, each class in random order.
    """
    _check_enough(len(classes), "rows", folds)
    generator = np.random.default_rng(seed)
    order = [generator.permutation(rows) for rows in _rows_by_name(classes).values()]
    return _round_robin(np.concatenate(order), folds)


def group_folds(groups: Sequence[Hashable], folds: int, seed: int) -> FoldIndices:
    """Folds of about equal size; all rows of a group are in one fold.

    Each group, the largest first and equally large ones in random order, is put into the fold that
    has the fewest rows.

    Raises:
        ConfigError: there are fewer groups than folds.
    """
    members = list(_rows_by_name(groups).values())
    _check_enough(len(members), "groups", folds)
    order = np.random.default_rng(seed).permutation(len(members)).tolist()
    fold_of, sizes = np.zeros(len(groups), dtype=int), [0] * folds
    for index in sorted(order, key=lambda index: -len(members[index])):
        smallest = sizes.index(min(sizes))
        fold_of[members[index]] = smallest
        sizes[smallest] += len(members[index])
    return fold_of


def consecutive_folds(count: int, folds: int) -> FoldIndices:
    """Folds of consecutive rows, for running text, whose lines belong together."""
    _check_enough(count, "rows", folds)
    return np.arange(count) * folds // count


def last_split(count: int, share: float) -> Mask:
    """As `random_split`, but the last rows, for running text, whose lines belong together."""
    chosen = np.arange(count) >= count - _rows_of_share(count, share)
    return _checked_mask(chosen, share)


def _round_robin(order: np.ndarray, folds: int) -> FoldIndices:
    """The fold of each row: rows in this order, the first in fold 0, the next in fold 1, ..."""
    fold_of = np.empty(len(order), dtype=int)
    fold_of[order] = np.arange(len(order)) % folds
    return fold_of


def _check_enough(count: int, what: str, folds: int) -> None:
    if count < folds:
        raise ConfigError(
            f"[data] `valid` is one of {folds} folds, each of which needs one of the {what}, but "
            f"there are {count}. Choose fewer folds."
        )


def _rows_of_share(count: int, share: float) -> int:
    return max(1, round(count * share))


def _rows_by_name(names: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    rows: dict[Hashable, list[int]] = {}
    for index, name in enumerate(names):
        rows.setdefault(name, []).append(index)
    return rows


def _checked_mask(chosen: Mask, share: float) -> Mask:
    if chosen.all():
        raise ConfigError(
            f"[data] `valid` is {share:g} of {len(chosen)} rows, which leaves no row on one side. "
            "Give more rows, or another share."
        )
    return chosen


LINES = 40  # of a block
SMALLEST, LARGEST = 10_000, 100_000  # characters of validation data taken from a text


def split_text(lines: Sequence[str]) -> dict[str, list[str]]:
    """The lines of a text in three parts, "train", "valid" and "test".

    Of a hundred blocks of lines one is validation data and another one test data, of a small text
    more, and of a large one fewer. They are distributed evenly over the text.

    Raises:
        ConfigError: the text is too small.
    """
    size = sum(len(line) + 1 for line in lines)
    if size < 10 * SMALLEST:
        raise ConfigError(
            f"The text has {size:,} characters, but must have {10 * SMALLEST:,}, so that parts of "
            "it suffice to validate and to test on. Or name files: train=... valid=... test=..."
        )
    blocks = round(size / min(max(size / 100, SMALLEST), LARGEST))
    parts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    held_out = {blocks // 2: "valid", blocks - 1: "test"}
    for number, line in enumerate(lines):
        parts[held_out.get(number // LINES % blocks, "train")].append(line)
    return parts
