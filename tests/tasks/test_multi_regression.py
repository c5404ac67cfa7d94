"""Several numbers: training on every form of data, beside formulas, scipy and transformers."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from tiny_folders import FAMILIES, GPTS, folder, their_scores

import regard
from regard.errors import DataError
from regard.experiments import runs

pandas = pytest.importorskip("pandas")
transformers = pytest.importorskip("transformers")

TEXTS = ["a good film", "dull and bad", "i liked it", "slow", "good fun", "very bad"] * 4
NUMBERS = [[len(text) / 10, text.count("o") - 0.5] for text in TEXTS]
COLUMNS = pandas.DataFrame(NUMBERS, columns=["length", "count"]).assign(text=TEXTS, id=range(24))
LISTS = pandas.DataFrame({"text": TEXTS, "labels": NUMBERS})
OWN = dict(columns=["text"], target_columns=["length", "count"])
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@pytest.fixture
def start(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(folder(tmp_path / "start", "bert", "Model", **NO_DROPOUT))


def train(**options):
    given = dict(task="multi-regression", train=COLUMNS, valid=0.25, model="start")
    given |= dict(epochs=1, learning_rate=1e-2, schedule={"name": "constant"}, progress=False)
    given |= OWN if "train" not in options else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return regard.train(**(given | options))


def planned(run) -> runs.TrainingPlan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return runs.plan(runs.read_recipe(run.folder / "recipe.toml"))


def written(name: str) -> dict:
    """The data in a form, as keywords; each holds the same rows."""
    match name:
        case "frame of columns":
            return dict(train=COLUMNS, **OWN)
        case "frame of lists":
            return dict(train=LISTS)
        case "frame of arrays":
            return dict(train=LISTS.assign(labels=[np.array(row) for row in NUMBERS]))
        case "frame of tensors":
            return dict(
                train=LISTS.assign(
                    labels=[torch.tensor(row, dtype=torch.float64) for row in NUMBERS]
                )
            )
        case "tuples":
            return dict(train=list(zip(TEXTS, NUMBERS, strict=True)))
        case "tuples with columns":
            rows = [(text, *row) for text, row in zip(TEXTS, NUMBERS, strict=True)]
            return dict(train=rows, target_columns=[1, 2])
        case "csv":
            COLUMNS.to_csv("rows.csv", index=False)
            return dict(train="rows.csv", **OWN)
        case "jsonl":
            LISTS.to_json("rows.jsonl", orient="records", lines=True, double_precision=15)
            return dict(train="rows.jsonl", columns=["text", "labels"])
        case "parquet":
            pytest.importorskip("pyarrow")
            LISTS.to_parquet("rows.parquet")
            return dict(train="rows.parquet", columns=["text", "labels"])
    raise AssertionError(name)


FORMS = (
    "frame of columns", "frame of lists", "frame of arrays", "frame of tensors", "tuples",
    "tuples with columns", "csv", "jsonl", "parquet",
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_data_gives_the_same_targets_and_scores(start, form):
    run = train(**written(form))
    lists = form not in ("frame of columns", "tuples with columns", "csv")
    names = ("LABEL_0", "LABEL_1") if lists else ("length", "count")
    assert run.model.labels == (("1", "2") if form == "tuples with columns" else names)
    plan = planned(run)
    data = plan.recipe.data
    targets = [plan.task.target(row[-1], "", 0) for row in data.read(data.train, "train")]
    assert targets == NUMBERS
    assert run.scores == train(out="other").scores
    scores = run.evaluate(data.read(data.train, "train")).named
    assert (
        run.evaluate(list(zip(TEXTS, NUMBERS, strict=True))).named
        == run.evaluate(LISTS).named
        == scores
    )
    if names == run.model.labels and not lists:
        assert run.evaluate(COLUMNS).named == scores


def test_a_missing_number_in_a_file_is_an_error_with_its_line(start):
    Path("rows.csv").write_text("text,length,count\na,1,2\nb,,2\n")
    with pytest.raises(DataError, match="rows.csv:3: has no value in column 'length'"):
        train(train="rows.csv", **OWN)
    Path("rows.csv").write_text("text,length,count\na,1,2\nb,nan,2\n")
    with pytest.raises(DataError, match="rows.csv:3: has 'nan', but a target must be a finite"):
        train(train="rows.csv", **OWN)


def test_the_loss_is_the_mean_squared_error_and_that_of_transformers(start):
    task = planned(train()).task
    runs.save(task, "saved")
    task.module.eval()
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained("saved").eval()
    batch = next(task.train_batches())
    targets = task.parts.train.targets[batch.numbers]
    with torch.no_grad():
        total, count = task.losses(batch)[0]["loss"]
        scores = task.module.scores("classes", batch.texts).double()
        keep = batch.texts.keep.long()
        loss = theirs(input_ids=batch.texts.ids, attention_mask=keep, labels=targets).loss
    assert float(total) / count == pytest.approx(float(loss), rel=1e-5)
    assert float(total) / count == pytest.approx(
        sum((a - b) ** 2 for a, b in zip(scores.flatten(), targets.flatten(), strict=True)).item()
        / targets.numel(),
        rel=1e-5,
    )


def test_scores_are_those_of_the_predictions_by_number_and_their_means(start):
    run = train(valid=COLUMNS, epochs=10)
    found = np.array([[*one.values()] for one in run.predict(TEXTS)])
    wanted = np.array(NUMBERS)
    pairs = list(zip(found.T, wanted.T, strict=True))
    kept = {
        "mse": np.mean((found - wanted) ** 2),
        "mae": np.mean(np.abs(found - wanted)),
        "pearson": np.mean([scipy.stats.pearsonr(*pair).statistic for pair in pairs]),
        "spearman": np.mean([scipy.stats.spearmanr(*pair).statistic for pair in pairs]),
    }
    scores = run.evaluate(COLUMNS).named
    assert [score.value for score in scores] == pytest.approx(list(kept.values()), rel=1e-4)
    assert run.result.best == pytest.approx(kept["mse"], rel=1e-5) and run.result.best < 1
    assert [one.label for one in scores[0].report.numbers] == ["length", "count"]
    facts = json.loads(json.dumps(scores[0].facts()))
    assert facts["numbers"][1]["mse"] == pytest.approx(np.mean((found - wanted)[:, 1] ** 2))
    page = (run.folder / "report.html").read_text()
    assert "Scores of each number" in page and f"{facts['numbers'][1]['mae']:.4g}" in page


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_gives_the_same_numbers_from_a_saved_folder(tmp_path, monkeypatch, family):
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "start", family, "LMHeadModel" if family in GPTS else "Model")
    run = train()
    theirs = their_scores("AutoModelForSequenceClassification", run.folder / "model", TEXTS)
    ours = torch.tensor([[*one.values()] for one in run.predict(TEXTS)])
    assert torch.allclose(theirs, ours, atol=1e-4)
    config = json.loads((run.folder / "model/config.json").read_text())
    assert config["problem_type"] == "regression"
    assert config["id2label"] == {"0": "length", "1": "count"}
