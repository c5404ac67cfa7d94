"""The task of a folder of another library is inferred from its config.

Tests of `regard.tasks.line_predictor` and `regard.tasks.folders`.
"""

from __future__ import annotations

import json
import warnings

import pytest
from tiny_folders import folder, transformers
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import RegardError
from regard.experiments import runs

CASES = [
    ("bert", "ForSequenceClassification", "classification"),
    ("bert", "ForTokenClassification", "tagging"),
    ("bert", "ForQuestionAnswering", "question-answering"),
    ("bert", "ForMultipleChoice", "multiple-choice"),
    ("bert", "ForMaskedLM", "fill-mask"),
    ("bert", "ForPreTraining", "fill-mask"),
    ("bert", "ForNextSentencePrediction", "next-sentence"),
    ("roberta", "ForMaskedLM", "fill-mask"),
    ("distilbert", "ForSequenceClassification", "classification"),
    ("gpt", "LMHeadModel", "language-modeling"),
    ("gpt2", "LMHeadModel", "language-modeling"),
    ("gpt2", "DoubleHeadsModel", "multiple-choice"),
    ("gpt2", "ForTokenClassification", "tagging"),
]


@pytest.mark.parametrize("family, ending, task", CASES)
def test_the_head_of_a_folder_decides_the_task(tmp_path, family, ending, task):
    assert runs.load(folder(tmp_path, family, ending)).name == task


# ---- folders of ours that somebody else has changed ----------------------------------------------


@pytest.fixture
def ours(tmp_path):
    """A classifier as we save it."""
    named = dict(enumerate(("no", "maybe", "yes")))
    task = runs.load(
        folder(tmp_path / "theirs", "bert", "ForSequenceClassification", id2label=named)
    )
    runs.save(task, tmp_path / "ours")
    return tmp_path / "ours"


def saved_again(path, ending, **options):
    """The folder as `transformers` saves it again; `regard` in config.json is unchanged."""
    model = getattr(transformers, f"Bert{ending}").from_pretrained(
        path, ignore_mismatched_sizes=True, **options
    )
    model.save_pretrained(path)
    assert json.loads((path / "config.json").read_text())["regard"]["task"] == "classification"
    return path


def test_labels_have_one_list_of_names_and_what_contradicts_it_is_an_error(ours):
    def load(**changes):
        (ours / "config.json").write_text(json.dumps(sound | changes))
        return runs.load(ours).labels

    sound = json.loads((ours / "config.json").read_text())
    assert "labels" not in sound["regard"]
    renamed = {"0": "bad", "1": "fair", "2": "good"}
    assert load(id2label=renamed, label2id={"fair": 1}) == ("bad", "fair", "good")
    assert load(num_labels=3) == ("no", "maybe", "yes")
    with pytest.warns(UserWarning, match="names 2 of 3 labels"):
        assert load(id2label={"2": "c", "0": "a"}, label2id=None) == ("a", "LABEL_1", "c")
    with pytest.raises(RegardError, match="config.json: `regard.labels`"):
        load(regard=sound["regard"] | {"labels": ["a", "b", "c"]})


@pytest.mark.parametrize("task", ["tagging", "multi-label-classification", "embedding"])
def test_the_task_and_the_type_that_a_caller_names_are_opened(tmp_path, task):
    ending = "ForTokenClassification" if task == "tagging" else "ForSequenceClassification"
    path = folder(tmp_path, "bert", ending)
    config = json.loads((path / "config.json").read_text())
    config |= {"architectures": ["X"], "model_type": "x"}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RegardError, match="model_type"):
        regard.load(path, task=task)
    assert regard.load(path, task=task, model_type="bert").name == task
    flags = ["--task", task, "--model-type", "bert"]
    command = "embed" if task == "embedding" else "predict"
    result = CliRunner().invoke(app, [command, str(path), "a dog", *flags])
    assert result.exit_code == 0, result.output
    with pytest.raises(RegardError, match="The task translation is not for this model"):
        regard.load(path, task="translation", model_type="bert")


@pytest.mark.parametrize("count", [2, 5])
def test_a_new_head_of_the_same_kind_has_its_own_labels(ours, count):
    task = runs.load(saved_again(ours, "ForSequenceClassification", num_labels=count))
    assert task.labels == tuple(f"LABEL_{i}" for i in range(count))


@pytest.mark.parametrize(
    "ending, options, task",
    [
        ("ForTokenClassification", {}, "tagging"),
        ("ForMaskedLM", {}, "fill-mask"),
        ("ForSequenceClassification", dict(num_labels=1, problem_type="regression"), "regression"),
        ("Model", {}, "embedding"),
    ],
)
def test_a_head_of_another_kind_gives_another_task_with_a_warning(ours, ending, options, task):
    path = saved_again(ours, ending, **options)
    with pytest.warns(
        UserWarning, match="task classification, but the weights have no head for it"
    ):
        assert runs.load(path).name == task


def test_an_unchanged_folder_is_loaded_without_warning(ours):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert runs.load(ours).labels == ("no", "maybe", "yes")


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_transformers_truncates_texts_to_the_limit_of_a_saved_folder(tmp_path, family):
    task = runs.load(folder(tmp_path / "theirs", family, "ForSequenceClassification"))
    runs.save(task, tmp_path / "ours")
    theirs = transformers.pipeline("text-classification", str(tmp_path / "ours"))
    assert theirs("a dog runs " * 99, truncation=True)[0]["label"] in task.labels
