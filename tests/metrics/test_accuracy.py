"""Accuracy against scikit-learn and by hand."""

import pytest
import torch
from sklearn.metrics import accuracy_score

from regard.errors import RegardError
from regard.metrics import Accuracy


def test_against_scikit_learn():
    torch.manual_seed(0)
    found, wanted = torch.randint(0, 4, (200,)), torch.randint(0, 4, (200,))
    metric = Accuracy()
    for part in range(0, 200, 33):
        metric.add(found[part : part + 33], wanted[part : part + 33])
    assert metric.result().value == accuracy_score(wanted, found)
    metric = Accuracy()
    metric.add(found.tolist(), wanted.tolist())
    assert metric.result().value == accuracy_score(wanted, found)


def test_by_hand():
    metric = Accuracy()
    metric.add(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, -100], [3, 5]]))
    metric.add(["noun", "verb"], ["noun", "noun"])
    assert str(metric.result()) == "accuracy = 0.6000 count:5"
    with pytest.raises(RegardError, match="1 predictions and 2 targets"):
        metric.add(["a"], ["a", "b"])
    with pytest.raises(RegardError, match="must have one shape"):
        metric.add(torch.zeros(2, 3), torch.zeros(3, 2))
    with pytest.raises(RegardError, match="Accuracy of nothing"):
        Accuracy().result()
