"""Pearson's and Spearman's correlation, fed in any portions, against scipy."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from test_labels import fed

from regard.metrics import Pearson, Spearman

JUDGES = [(Pearson, pearsonr), (Spearman, spearmanr)]
numbers = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6).map(lambda x: round(x, 3)))


@pytest.mark.parametrize("metric, judge", JUDGES)
@given(
    rows=st.lists(st.tuples(numbers, numbers), min_size=2, max_size=60), portion=st.integers(1, 9)
)
def test_correlations_equal_those_of_scipy(metric, judge, rows, portion):
    found, wanted = map(list, zip(*rows, strict=True))
    score = fed(metric(), found, wanted, portion)
    assert score.count == len(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant input
        expected = judge(found, wanted).statistic
    assert score.value == pytest.approx(expected, abs=1e-9, nan_ok=True)
