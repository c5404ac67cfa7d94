"""Maps of texts equal principal components computed by others; neighbours those of `search`."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA

from regard.visual.texts import TextMap


def vectors(count, width=6, seed=0):
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def names(count):
    return [f"text {number}" for number in range(count)]


@pytest.mark.parametrize(("count", "width"), [(40, 6), (5, 12), (3, 2)])
def test_points_equal_scikit_learn_up_to_the_sign(count, width):
    given = vectors(count, width)
    found = TextMap.of(given, names(count))
    unit = given / np.linalg.norm(given, axis=1, keepdims=True)
    expected = PCA(2).fit(unit.astype(np.float64))
    points = expected.transform(unit)
    ours = found.points.numpy()
    signs = np.sign((points * ours).sum(0))
    np.testing.assert_allclose(ours, points * signs, atol=1e-5)
    np.testing.assert_allclose(found.shares, expected.explained_variance_ratio_[:2], atol=1e-6)
    largest = found.directions.abs().argmax(1, keepdim=True)
    assert (found.directions.gather(1, largest) > 0).all()
    assert np.array_equal(TextMap.of(given, names(count)).points.numpy(), ours)


def test_neighbours_are_those_with_the_largest_cosines():
    given, query = vectors(30), vectors(1, seed=1)[0]
    found = TextMap.of(given, names(30), ["a", "b", "c"] * 10)
    cosines = given @ query / np.linalg.norm(given, axis=1) / np.linalg.norm(query)
    expected = sorted(range(30), key=lambda index: -cosines[index])[:7]
    nearest = found.nearest(query, 7)
    assert [one.index for one in nearest] == expected
    assert [one.text for one in nearest] == [f"text {index}" for index in expected]
    assert [one.score for one in nearest] == pytest.approx(cosines[expected].tolist(), abs=1e-6)
