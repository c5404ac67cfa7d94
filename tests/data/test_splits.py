"""Validation data taken from training data: shares, classes, groups, and the same for one seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedShuffleSplit

from regard.data.splits import group_split, last_split, random_split, stratified_split
from regard.errors import ConfigError

SHARES = st.floats(0.05, 0.9)


@given(st.integers(10, 300), SHARES, st.integers(0, 5))
def test_random_split_has_its_share_and_depends_on_the_seed_alone(count, share, seed):
    chosen = random_split(count, share, seed)
    assert chosen.sum() == max(1, round(count * share))
    np.testing.assert_array_equal(chosen, random_split(count, share, seed))


def test_random_splits_of_different_seeds_differ():
    assert not np.array_equal(random_split(100, 0.3, 1), random_split(100, 0.3, 2))


@given(st.lists(st.sampled_from("aaaaab"), min_size=30, max_size=200), SHARES)
def test_stratified_split_has_the_share_of_every_class_up_to_one_row(classes, share):
    chosen = stratified_split(classes, share, 0)
    inside = Counter(name for name, one in zip(classes, chosen, strict=True) if one)
    for name, count in Counter(classes).items():
        assert abs(inside[name] - count * share) < 1 + 1e-9
    assert chosen.sum() == max(1, round(len(classes) * share))


def test_stratified_split_has_as_many_rows_of_each_class_as_scikit_learn_s():
    classes = ["x"] * 60 + ["y"] * 30 + ["z"] * 10
    splitter = StratifiedShuffleSplit(1, test_size=0.2, random_state=0)
    _, theirs = next(splitter.split(np.zeros(100), classes))
    ours = np.flatnonzero(stratified_split(classes, 0.2, 0))
    assert Counter(classes[i] for i in ours) == Counter(classes[i] for i in theirs)


@given(st.lists(st.integers(0, 8), min_size=30, max_size=200), SHARES)
def test_group_split_never_separates_a_group(groups, share):
    if len({*groups}) < 2:
        return
    chosen = group_split(groups, share, 0)
    inside = {group for group, one in zip(groups, chosen, strict=True) if one}
    outside = {group for group, one in zip(groups, chosen, strict=True) if not one}
    assert inside and outside and not inside & outside


def test_last_split_takes_the_end():
    assert last_split(10, 0.2).tolist() == [False] * 8 + [True] * 2


@pytest.mark.parametrize("split", [random_split, lambda n, share, seed: last_split(n, share)])
def test_a_split_that_leaves_one_side_empty_raises_an_error(split):
    with pytest.raises(ConfigError, match="leaves no row to train on"):
        split(1, 0.5, 0)


def test_rows_of_one_group_cannot_be_split():
    with pytest.raises(ConfigError, match="one group only"):
        group_split(["one"] * 5, 0.5, 0)
