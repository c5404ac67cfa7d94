"""Validation data taken from training data: shares, classes, groups, and the same for one seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold

from regard.data.splits import (
    group_folds,
    group_split,
    random_folds,
    stratified_folds,
    stratified_split,
)

SHARES = st.floats(0.05, 0.9)


@given(st.lists(st.sampled_from("aaaaab"), min_size=30, max_size=60), SHARES)
def test_stratified_split_has_the_share_of_every_class_up_to_one_row(classes, share):
    chosen = stratified_split(classes, share, 0)
    inside = Counter(name for name, one in zip(classes, chosen, strict=True) if one)
    for name, count in Counter(classes).items():
        assert abs(inside[name] - count * share) < 1 + 1e-9
    assert chosen.sum() == max(1, round(len(classes) * share))


@given(st.lists(st.integers(0, 8), min_size=30, max_size=60), SHARES)
def test_group_split_never_separates_a_group(groups, share):
    if len({*groups}) < 2:
        return
    chosen = group_split(groups, share, 0)
    inside = {group for group, one in zip(groups, chosen, strict=True) if one}
    outside = {group for group, one in zip(groups, chosen, strict=True) if not one}
    assert inside and outside and not inside & outside


# ---- folds

FOLDS = st.integers(2, 7)


def sizes(found, folds):
    """The rows of each fold; every row is in one of them."""
    assert found.min() >= 0 and found.max() < folds
    return np.bincount(found, minlength=folds)


@given(st.integers(7, 200), FOLDS, st.integers(0, 5))
def test_random_folds_have_the_sizes_of_scikit_learn_s(count, folds, seed):
    found = random_folds(count, folds, seed)
    theirs = KFold(folds, shuffle=True, random_state=seed).split(np.zeros(count))
    assert sizes(found, folds).tolist() == [len(test) for _, test in theirs]
    np.testing.assert_array_equal(found, random_folds(count, folds, seed))


@given(st.lists(st.sampled_from("aaaaabbc"), min_size=7, max_size=60), FOLDS)
def test_stratified_folds_have_equally_many_rows_and_rows_of_each_class_up_to_one(classes, folds):
    found = stratified_folds(classes, folds, 0)
    assert np.ptp(sizes(found, folds)) <= 1
    for name in {*classes}:
        assert np.ptp(sizes(found[np.array(classes) == name], folds)) <= 1


@pytest.mark.parametrize("counts", [(60, 30, 10), (11, 7, 5), (100, 5, 5)])
def test_stratified_folds_have_as_many_rows_of_each_class_as_scikit_learn_s(counts):
    classes = [name for name, count in zip("xyz", counts, strict=True) for _ in range(count)]
    found = stratified_folds(classes, 5, 0)
    theirs = StratifiedKFold(5, shuffle=True, random_state=0).split(np.zeros(len(classes)), classes)
    expected = [Counter(classes[i] for i in test) for _, test in theirs]
    ours = [Counter(np.array(classes)[found == fold].tolist()) for fold in range(5)]
    assert ours == expected


@given(st.lists(st.integers(0, 12), min_size=30, max_size=60), FOLDS)
def test_group_folds_never_separate_a_group_and_have_the_sizes_of_scikit_learn_s(groups, folds):
    if len({*groups}) < folds:
        return
    found = group_folds(groups, folds, 0)
    assert all(len({*found[np.array(groups) == group].tolist()}) == 1 for group in {*groups})
    theirs = GroupKFold(folds).split(np.zeros(len(groups)), groups=groups)
    assert sorted(sizes(found, folds)) == sorted(len(test) for _, test in theirs)
