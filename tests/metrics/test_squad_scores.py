"""Answers' EM and F1 against a naive judge written from the papers, and published scores."""

import json
import random
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.metrics import SQuAD, SQuAD2

# What the official scripts print for the predictions on the development sets: (EM, F1), and for
# two of them what the systems' papers say.
SCORES_1 = {
    "BERT (ensemble) (Google AI Language)": (86.20624408703878, 92.19557978351129),
    "Logistic Regression Baseline (Stanford University)": (40.14191106906339, 50.98153647324482),
    "Match-LSTM with Ans-Ptr (Boundary+Ensemble) (Singapore Management University)": (
        67.63481551561021,
        76.75556184979696,
    ),
}
PAPERS = {"BERT": (86.2, 92.2), "Match-LSTM": (67.6, 76.8)}
SCORES_2 = {
    "BERT (single model) (Google AI Language)": {
        "exact": 78.74168280973637,
        "f1": 81.77528052374727,
        "total": 11873,
        "HasAns_exact": 74.10593792172739,
        "HasAns_f1": 80.18183293833516,
        "HasAns_total": 5928,
        "NoAns_exact": 83.36417157275021,
        "NoAns_f1": 83.36417157275021,
        "NoAns_total": 5945,
    },
    "BiDAF + Self Attention + ELMo (single model) (Allen Institute for Artificial Intelligence "
    "[modified by Stanford])": {
        "exact": 65.70369746483618,
        "f1": 67.8764892145134,
        "total": 11873,
        "HasAns_exact": 61.42037786774629,
        "HasAns_f1": 65.77219238257676,
        "HasAns_total": 5928,
        "NoAns_exact": 69.97476871320437,
        "NoAns_f1": 69.97476871320437,
        "NoAns_total": 5945,
    },
}


def naive_words(text):
    letters = [letter for letter in text.lower() if letter not in set(string.punctuation)]
    words = re.split(r"\b(?:the|an|a)\b", "".join(letters))
    return " ".join(words).split()


def naive_f1(found, wanted):
    rest, shared = list(wanted), 0
    for word in found:
        if word in rest:
            rest.remove(word)
            shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / len(found), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def naive(prediction, answers, version):
    """(EM, F1) of one question."""
    found, wanted = naive_words(prediction), [naive_words(answer) for answer in answers]
    if version == 2:
        wanted = [words for words in wanted if words] or [[]]
        if not found:
            return float([] in wanted), float([] in wanted)
    return float(any(found == words for words in wanted)), max(
        naive_f1(found, words) for words in wanted
    )


def naive_best(rows, column):
    """The best mean over all ways to cut a list without equal scores, and its last score."""
    rows = sorted(rows)
    tried = []
    for cut in range(len(rows) + 1):
        kept = sum(
            row[2][column] if row[1] else float(not row[3]) for row in rows[:cut]
        )  # answered as predicted
        left = sum(not row[1] for row in rows[cut:])  # not answered
        tried.append((100 * (kept + left) / len(rows), -cut))
    value, cut = max(tried)
    return value, rows[-cut - 1][0] if cut else 0.0


def questions(path):
    return {
        question["id"]: [answer["text"] for answer in question["answers"]]
        for article in json.loads(path.read_text())["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    }


@pytest.mark.parametrize("system", SCORES_1)
def test_published_systems_have_their_scores_of_version_1(shared, system):
    answers = questions(shared("squad/dev-v1.1.reconstructed.json"))
    predictions = json.loads(shared(f"squad/models/1.1/{system}.json").read_text())
    metric = SQuAD()
    # As the official script has it, a question without a prediction scores 0.
    metric.add([predictions.get(name, "") for name in answers], list(answers.values()))
    score = metric.result()
    assert (score.exact, score.value) == pytest.approx(SCORES_1[system], abs=1e-9)
    rounded = (round(score.exact, 1), round(score.value, 1))
    assert rounded == PAPERS.get(system.split()[0], rounded)
    judged = [naive(predictions[n], answers[n], 1) for n in answers if n in predictions]
    exact, f1 = (100 * sum(column) / 10570 for column in zip(*judged, strict=True))
    assert (score.exact, score.value) == pytest.approx((exact, f1), abs=1e-9)
    assert score.signature == "version:1.1|count:10570"


@pytest.mark.parametrize("system", SCORES_2)
def test_published_systems_have_their_scores_of_version_2(shared, system):
    answers = questions(shared("squad/dev-v2.0.reconstructed.json"))
    predictions = json.loads(shared(f"squad/models/v2.0/{system}.json").read_text())
    metric = SQuAD2()
    metric.add([predictions[name] for name in answers], list(answers.values()))
    score = metric.result()
    assert score.details == pytest.approx(SCORES_2[system], abs=1e-9)
    assert (score.exact, score.value) == (score.details["exact"], score.details["f1"])
    assert score.signature == "version:2.0|count:11873|has:5928|none:5945"


texts = st.lists(
    st.sampled_from(["The", "a", "U.S.", "us", "cat", "Cat!", "an", "…", "theatre", "-", "½ "]),
    max_size=4,
).map(" ".join)
rows_of = {
    1: st.lists(st.tuples(texts, st.lists(texts, min_size=1, max_size=3)), min_size=1),
    2: st.lists(st.tuples(texts, st.lists(texts, max_size=3)), min_size=1),
}


@pytest.mark.parametrize("version, metric", [(1, SQuAD), (2, SQuAD2)])
@given(data=st.data())
def test_scores_of_any_answers_equal_those_of_a_naive_judge(version, metric, data):
    rows = data.draw(rows_of[version])
    metric = metric()
    for at in range(0, len(rows), 3):
        metric.add(*map(list, zip(*rows[at : at + 3], strict=True)))
    judged = [naive(*row, version) for row in rows]
    exact, f1 = (100 * sum(column) / len(rows) for column in zip(*judged, strict=True))
    assert (metric.result().exact, metric.result().value) == pytest.approx((exact, f1), abs=1e-9)


@given(rows=rows_of[2], threshold=st.sampled_from([-1.0, 0.3, 1.0]), seed=st.integers(0, 99))
def test_the_best_threshold_for_no_answer_equals_that_of_a_naive_search(rows, threshold, seed):
    predictions, answers = map(list, zip(*rows, strict=True))
    scores = random.Random(seed).sample([at / 100 for at in range(-200, 200)], len(rows))
    threshold = scores[0] if seed % 2 else threshold
    metric = SQuAD2(threshold)
    for at in range(0, len(rows), 3):
        part = slice(at, at + 3)
        metric.add(predictions[part], answers[part], scores[part])
    score = metric.result()
    judged = [naive(*row, 2) for row in rows]
    for column, name in enumerate(("exact", "f1")):
        values = [
            float(not given) if na > threshold else row[column]
            for row, given, na in zip(judged, answers, scores, strict=True)
        ]
        assert score.details[name] == pytest.approx(100 * sum(values) / len(rows), abs=1e-9)
        table = [
            (na, bool(given), row, bool(text))
            for na, given, row, text in zip(scores, answers, judged, predictions, strict=True)
        ]
        best = score.details[f"best_{name}"], score.details[f"best_{name}_thresh"]
        assert best == pytest.approx(naive_best(table, column), abs=1e-9)
    assert f"version:2.0|threshold:{threshold:g}|count:{len(rows)}" in score.signature


def test_an_answer_of_articles_only_has_f1_0_in_version_1_and_100_in_version_2():
    """Version 1.1 sees no word in common; version 2.0 takes such an answer for none."""
    metric = SQuAD()
    metric.add(["A"], [["a"]])
    assert (metric.result().exact, metric.result().value) == (100, 0)
    metric = SQuAD2()
    metric.add(["A"], [["a"]])
    assert (metric.result().exact, metric.result().value) == (100, 100)
