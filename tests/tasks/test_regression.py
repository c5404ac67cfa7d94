"""Numbers for texts: saved folders against transformers, correlations against scipy.

Tests of `regard.tasks.text_tasks` and `regard.tasks.encoding`.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import scipy.stats
import torch
from recipe_files import trained, written
from tiny_folders import ENCODERS, FAMILIES, folder, their_scores

from regard.experiments import runs

ROWS = [
    ("a good film", "i liked it", "4.5"), ("the ball is red", "where is it ?", "0"),
    ("the old cat sleeps on a warm mat", "a cat sleeps", "3.8"), ("dull", "it was fun", "1e0"),
    ("slow and bad", "i liked the film a lot", "2"),
]  # fmt: skip
FIRST, SECOND = [row[0] for row in ROWS], [row[1] for row in ROWS]
PAIRS = [row[:2] for row in ROWS]
RECIPE = dict(
    task="regression",
    model=dict(path="start"),
    data=dict(columns=[0, 1, 2], train="train.tsv", valid="train.tsv"),
    training=dict(epochs=2, schedule=dict(name="constant"), optimizer=dict(learning_rate=0.001)),
)


@pytest.fixture
def workdir(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(ROWS)
    written("small.toml", RECIPE)
    return tmp_path


def write(rows: list[tuple[str, ...]], name: str = "train.tsv") -> None:
    Path(name).write_text("".join("\t".join(row) + "\n" for row in rows))


train = partial(trained, "small.toml")


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_gives_the_same_numbers_from_a_saved_folder(workdir, family):
    folder(workdir / "start", family, "Model" if family in ENCODERS else "LMHeadModel")
    task, _ = train()
    theirs = their_scores(
        "AutoModelForSequenceClassification", workdir / "run/model", FIRST, SECOND
    )
    assert theirs.shape == (len(ROWS), 1)
    assert torch.allclose(torch.tensor(task.predict(PAIRS)), theirs[:, 0], atol=1e-5)
    assert task.name == "regression" and isinstance(task.predict(PAIRS[0]), float)


def test_scores_equal_the_correlations_of_scipy_and_the_squared_error(workdir):
    folder(workdir / "start", "bert", "Model")
    task, result = train()
    wanted = [float(row[2]) for row in ROWS]
    found = task.predict(PAIRS)
    kept = {
        "pearson": scipy.stats.pearsonr(found, wanted)[0],
        "spearman": scipy.stats.spearmanr(found, wanted)[0],
    }
    scores = {one.name.split()[0].lower(): one.value for one in task.evaluate(ROWS).named}
    assert scores == pytest.approx(kept, abs=1e-5) and task.goal == ("pearson", "max")
    assert result.best == pytest.approx(kept["pearson"], abs=1e-5)
    task = runs.plan(runs.read_recipe("small.toml", ["model.path=run"])).task  # its head stays
    errors = (torch.tensor(found) - torch.tensor(wanted)) ** 2
    assert task.validate()["loss"] == pytest.approx(errors.mean().item(), rel=1e-3)


SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sbert_ce_default_activation_function": SIGMOID},
        {"sentence_transformers": {"activation_fn": SIGMOID, "version": "4.1.0"}},
        {"sentence_transformers": {"version": "4.1.0"}},
        {"sentence_transformers": {"activation_fn": IDENTITY}},
    ],
)
def test_a_cross_encoder_applies_its_activation(workdir, fields):
    """See `regard.tasks.text_tasks.cross_encoder_activation`."""
    theirs = pytest.importorskip("sentence_transformers", reason="opens folders for comparison")
    start = folder(workdir / "start", "bert", "ForSequenceClassification", num_labels=1)
    config = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps(config | fields))
    expected = theirs.CrossEncoder(str(start), device="cpu").predict(PAIRS)
    task = runs.load(start)
    assert task.predict(PAIRS) == pytest.approx(expected.tolist(), abs=1e-5)
    task.save(workdir / "saved")
    again = theirs.CrossEncoder(str(workdir / "saved"), device="cpu").predict(PAIRS)
    assert again == pytest.approx(expected, abs=1e-5)
    assert runs.load(workdir / "saved").predict(PAIRS) == pytest.approx(expected.tolist(), abs=1e-5)
