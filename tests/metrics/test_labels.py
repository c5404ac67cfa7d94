"""Scores of labels against scikit-learn and by hand, and GLUE's average of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, matthews_corrcoef

from regard.metrics import F1, Accuracy, MacroF1, Matthews, MicroRelationF1, RelationF1
from regard.metrics.labels import glue_average

pairs = st.lists(st.tuples(*[st.sampled_from(["no", "yes", "maybe"])] * 2), min_size=1)


def fed(metric, found, wanted, portion=7):
    for at in range(0, len(found), portion):
        metric.add(found[at : at + portion], wanted[at : at + portion])
    return metric.result()


def test_accuracy_equals_that_of_scikit_learn():
    torch.manual_seed(0)
    found, wanted = torch.randint(0, 4, (200,)), torch.randint(0, 4, (200,))
    for kind in (lambda column: column, torch.Tensor.tolist):
        score = fed(Accuracy(), kind(found), kind(wanted), 33)
        assert score.value == accuracy_score(wanted, found)


@pytest.mark.filterwarnings("ignore:A single label was found")
@given(pairs)
def test_f1_macro_f1_and_matthews_equal_those_of_scikit_learn(rows):
    found, wanted = map(list, zip(*rows, strict=True))
    names = ["no", "yes", "maybe"]
    one = fed(F1("yes", labels=names), found, wanted)
    assert one.value == pytest.approx(
        f1_score(wanted, found, labels=["yes"], average="macro", zero_division=0), abs=1e-12
    )
    macro = f1_score(wanted, found, average="macro", zero_division=0)
    assert fed(MacroF1(), found, wanted).value == pytest.approx(macro, abs=1e-12)
    macro = f1_score(wanted, found, labels=names, average="macro", zero_division=0)
    assert fed(MacroF1(names), found, wanted).value == pytest.approx(macro, abs=1e-12)
    correlation = matthews_corrcoef(wanted, found)
    assert fed(Matthews(), found, wanted).value == pytest.approx(correlation, abs=1e-12)


RELATIONS = ["Cause-Effect", "Component-Whole", "Entity-Origin"]
DIRECTED = [f"{name}({order})" for name in RELATIONS for order in ("e1,e2", "e2,e1")]


@given(st.lists(st.tuples(*[st.sampled_from([*DIRECTED, "Other"])] * 2), min_size=1))
def test_relation_f1_is_the_official_score_of_semeval_2010_task_8(rows):
    """By the scorer's definition, from the confusion of all labels: P = C / (predicted as the
    relation + its wrong directions), R = C / targets, and the mean F1 of relations in the key.
    """
    found, wanted = map(list, zip(*rows, strict=True))
    table = confusion_matrix(wanted, found, labels=[*DIRECTED, "Other"])
    scores = []
    for start in range(0, len(DIRECTED), 2):
        both = slice(start, start + 2)
        answered, in_key = table[:, both].sum(), table[both].sum()
        correct = table[both, both].trace()
        if in_key:
            precision, recall = (correct / answered if answered else 0), correct / in_key
            scores.append(2 * precision * recall / (precision + recall) if correct else 0)
    expected = sum(scores) / len(scores) if scores else 0
    assert fed(RelationF1(), found, wanted).value == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.tuples(*[st.sampled_from([*RELATIONS, "no_relation"])] * 2), min_size=1))
def test_relation_micro_f1_is_the_official_score_of_tacred(rows):
    found, wanted = map(list, zip(*rows, strict=True))
    expected = f1_score(wanted, found, labels=RELATIONS, average="micro", zero_division=0)
    assert fed(MicroRelationF1(), found, wanted).value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("counts", [(1, 1, 1), (1, 2, 3), (5, 7, 11), (3, 1, 9)])
def test_matthews_of_right_and_of_opposite_predictions_is_within_its_bounds(counts):
    labels = [name for name, count in zip("abc", counts, strict=True) for _ in range(count)]
    assert fed(Matthews(), labels, labels).value == 1.0
    two = [name for name in labels if name != "c"]
    opposite = [{"a": "b", "b": "a"}[name] for name in two]
    assert fed(Matthews(), opposite, two).value == -1.0


@pytest.mark.parametrize("metric", [lambda: F1(1), MacroF1, Matthews])
def test_lists_tensors_and_arrays_give_the_same_score(metric):
    draw = np.random.default_rng(0)
    found, wanted = draw.integers(0, 3, 40), draw.integers(0, 3, 40)
    wanted[::5] = -100  # left out, whatever was predicted
    expected = fed(metric(), found[wanted >= 0].tolist(), wanted[wanted >= 0].tolist())
    assert expected.count == 32
    tensors = metric()
    tensors.add(torch.tensor(found).view(8, 5), torch.tensor(wanted).view(8, 5))
    lists = fed(metric(), found.tolist(), wanted.tolist(), 11)
    assert expected == tensors.result() == lists == fed(metric(), found, wanted)


# The rows that BERT's authors submitted, with WNLI as the majority class: the benchmark's average,
# and the scores behind it. F1 stands before accuracy there; the mean does not mind.
LEADERBOARD = {
    80.5: {
        "cola": [60.5],
        "sst2": [94.9],
        "mrpc": [85.4, 89.3],
        "stsb": [87.6, 86.5],
        "qqp": [89.3, 72.1],
        "mnli-matched": [86.7],
        "mnli-mismatched": [85.9],
        "qnli": [92.7],
        "rte": [70.1],
        "wnli": [65.1],
    },
}


@pytest.mark.parametrize("expected", LEADERBOARD)
def test_averages_equal_those_of_the_leaderboard(expected):
    score = glue_average(LEADERBOARD[expected])
    assert round(score.value, 1) == expected
    assert score.signature == "tasks:cola,sst2,mrpc,stsb,qqp,mnli,qnli,rte,wnli"
    assert score.count == 9
