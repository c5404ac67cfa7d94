"""EM and F1 of published systems are those that the official scripts print."""

import json

import pytest

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
