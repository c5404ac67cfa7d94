"""GLUE's table and average against published rows of its leaderboard."""

import pytest

from regard.errors import ConfigError, RegardError
from regard.metrics import glue

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
    78.3: {
        "cola": [52.1],
        "sst2": [93.5],
        "mrpc": [84.8, 88.9],
        "stsb": [87.1, 85.8],
        "qqp": [89.2, 71.2],
        "mnli-matched": [84.6],
        "mnli-mismatched": [83.4],
        "qnli": [90.5],
        "rte": [66.4],
        "wnli": [65.1],
    },
}


@pytest.mark.parametrize("expected", LEADERBOARD)
def test_averages_equal_those_of_the_leaderboard(expected):
    score = glue.average(LEADERBOARD[expected])
    assert round(score.value, 1) == expected
    assert score.signature == "tasks:cola,sst2,mrpc,stsb,qqp,mnli,qnli,rte,wnli"
    assert score.count == 9


def test_scores_of_a_task_are_averaged():
    results = []
    for metric in glue.metrics("mrpc"):
        metric.add(list("1100"), list("1011"))
        results.append(metric.result())
    assert [str(score) for score in results] == [
        "accuracy = 0.2500 count:4",
        "F1 = 0.4000 positive:1|count:4",
    ]
    average = glue.average({"mrpc": results, "mnli-matched": [0.5]})
    assert str(average) == "GLUE average = 0.4125 tasks:mrpc,mnli-matched"


def test_unknown_tasks_and_missing_scores_raise_errors():
    with pytest.raises(ConfigError, match="GLUE has no task 'sst-2'. Did you mean 'sst2'?"):
        glue.metrics("sst-2")
    with pytest.raises(
        ConfigError, match="GLUE has no task 'mnli'. Known are: mnli-matched, mnli-mis"
    ):
        glue.average({"mnli": [0.5]})
    with pytest.raises(RegardError, match="mrpc has 2 metrics, but 1 scores are given"):
        glue.average({"mrpc": [0.5]})
