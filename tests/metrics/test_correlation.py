"""Pearson's and Spearman's correlation, fed in any portions, against scipy."""

import math
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr

from regard.metrics import Pearson, Spearman

JUDGES = [(Pearson, pearsonr), (Spearman, spearmanr)]
numbers = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6).map(lambda x: round(x, 3)))


def fed(metric, found, wanted, portion):
    for at in range(0, len(found), portion):
        metric.add(found[at : at + portion], wanted[at : at + portion])
    return metric.result()


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


@pytest.mark.parametrize("metric", [Pearson, Spearman])
def test_constant_values_have_an_undefined_correlation(metric):
    score = fed(metric(), [0.1] * 7, [1, 2, 3, 4, 5, 6, 7], 2)
    assert math.isnan(score.value)
    assert score.signature == "count:7|undefined:constant predictions"
    score = fed(metric(), [1], [2], 1)
    assert score.signature == "count:1|undefined:constant predictions and targets"
    assert "= nan count:1" in str(score)
