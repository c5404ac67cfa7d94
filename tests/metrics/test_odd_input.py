"""Every metric on input of every kind: a score, or an error with a message."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from regard.errors import RegardError
from regard.metrics import METRICS, metric_class
from regard.text.trees import read_trees

ODD = [
    torch.tensor(3), torch.tensor(1.5), np.float32(2), np.array("x"), np.array(2), 3, None, "text",
    ["a"], [1], [1.0], [None], [["O"]], [["B-X"]], [[1]], torch.tensor([1]), torch.zeros(2, 2),
    {"a": 1}, {1}, b"x", [torch.tensor(1)], [np.float32(1)], object(), [["a"], ["b"]], ["a", "b"],
    [math.nan], [], [{}],
]  # fmt: skip
NAMES = sorted({*METRICS} - {"perplexity"})


@pytest.mark.parametrize("name", NAMES)
def test_columns_of_any_kind_give_a_score_or_an_error(name):
    for given in itertools.product(ODD, ODD):
        metric = metric_class(name)(*(["1"] if name == "f1" else []))
        try:
            metric.add(*given)
            assert isinstance(metric.result().value, float)
        except RegardError as error:
            assert len(str(error)) > 15


TREE = read_trees("(S (N a) (V b))")[0]
GOOD = [("a", "a"), ("a", ["a"]), (["B-X"], ["B-X"]), (1.0, 1.0), (TREE, TREE)]
BAD = [
    *((None, "a"), ("a", None), ("a", []), ("a", [1]), (1, ["a"]), (["O"], ["O", "O"])),
    *((["?"], ["O"]), (math.nan, 1.0), (1.0, "x"), (TREE, "a"), ([1], [1]), ({}, {})),
    *((torch.zeros(2), 1), (1, np.zeros(2))),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_with_a_bad_row_counts_for_nothing(name):
    def of(*rows):
        metric = metric_class(name)(*(["a"] if name == "f1" else []))
        metric.add(*map(list, zip(*rows, strict=True)))
        return metric

    def accepted(row):
        try:
            return of(row, row).result() is not None
        except RegardError:
            return False

    good = next(filter(accepted, GOOD))
    refused = 0
    for bad in BAD:
        metric = of(good)
        try:
            metric.add([good[0], good[0], bad[0]], [good[1], good[1], bad[1]])
        except RegardError:
            refused += 1
            after, before = metric.result(), of(good).result()
            assert (str(after), after.count) == (str(before), before.count), bad
    assert refused
