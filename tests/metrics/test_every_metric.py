"""What all metrics do: `regard.metrics.labels`, `regard.metrics.text`, `regard.metrics.squad`."""

from __future__ import annotations

import pytest

from regard.errors import RegardError
from regard.metrics import F1, METRICS, metric_class
from regard.text.trees import read_trees

LABELS = (["a", "b", "a", "a"], ["a", "a", "b", "a"])
NUMBERS = ([1.0, 2.0, 4.0, 4.0], [2.0, 1.0, 5.0, 3.0])
TEXTS = (
    ["the cat sat", "", "a mat of the cat"],
    ["a cat sat", "the dog ran", "a mat of the cat"],
)
RELATIONS = (["R(e1,e2)", "Other", "R(e2,e1)"], ["R(e1,e2)", "R(e1,e2)", "Other"])
TREES = ["(S (NP (D a) (N b)) (V c))", "(S (NP (D a)) (VP (N b) (V c)))"]
ROWS = {
    "bracket-f1": (read_trees(" ".join(TREES)), read_trees(" ".join(TREES[::-1]))),
    "entity-f1": ([["B-X", "O"], ["O"], ["I-X"]], [["B-X", "I-X"], ["B-Y"], ["I-X"]]),
    "squad": (["x y", "x", "z"], [["x"], ["x", "y"], ["y z", "w"]]),
    "squad2": (["x y", "", "z"], [["x"], [], ["y z", "w"]]),
    **dict.fromkeys(("relation-f1", "relation-micro-f1"), RELATIONS),
    **dict.fromkeys(("accuracy", "f1", "macro-f1", "matthews"), LABELS),
    **dict.fromkeys(("pearson", "spearman"), NUMBERS),
    **dict.fromkeys(("bleu", "chrf", "rouge"), TEXTS),
    "cider": (TEXTS[0], [[text, "a dog ran"] for text in TEXTS[1]]),
}


@pytest.mark.parametrize("name", ROWS)
def test_portions_give_the_score_of_all_and_what_is_no_pair_of_columns_is_an_error(name):
    make = (lambda: F1("a")) if name == "f1" else metric_class(name)
    found, wanted = ROWS[name]
    for portion in (1, 2, len(found)):
        metric = make()
        with pytest.raises(RegardError, match="of nothing is not defined"):
            metric.result()
        for start in range(0, len(found) + 1, portion):  # the last one is empty
            metric.add(found[start : start + portion], wanted[start : start + portion])
        if portion == 1:
            each = metric.result()
        assert metric.result() == each == metric.result() and each.value != 0
    texts = [] if wanted is NUMBERS[1] else [("a", wanted[:1]), (found[:1], "a"), ("a", "a")]
    for columns in ((found, wanted[1:]), (found[1:], wanted), (found[:1], []), *texts):
        with pytest.raises(RegardError, match="as many|must be lists, but one is a string"):
            metric.add(*columns)
    assert metric.result() == each
    assert {*ROWS} == {*METRICS}
