"""Which task a folder of another library is for."""

from __future__ import annotations

import json
import warnings

import pytest
from tiny_folders import folder, transformers

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
def test_the_head_of_a_folder_says_its_task(tmp_path, family, ending, task):
    assert runs.load(folder(tmp_path, family, ending)).name == task


@pytest.mark.parametrize("ending", ["ForSequenceClassification", "ForTokenClassification"])
def test_labels_go_by_name_in_the_order_of_their_numbers(tmp_path, ending):
    # Numbers of JSON are strings: "10" comes before "2" there.
    named = {i: f"label {chr(122 - i)}" for i in range(11)}
    task = runs.load(folder(tmp_path, "bert", ending, id2label=named))
    assert list(task.labels) == list(named.values())


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


def saved_again(place, ending, **options):
    """What `transformers` makes of a folder: `regard` of config.json stays as it was."""
    model = getattr(transformers, f"Bert{ending}").from_pretrained(
        place, ignore_mismatched_sizes=True, **options
    )
    model.save_pretrained(place)
    assert json.loads((place / "config.json").read_text())["regard"]["task"] == "classification"
    return place


def test_labels_that_were_renamed_are_known_by_their_new_names(ours):
    config = json.loads((ours / "config.json").read_text())
    config["id2label"] = {"0": "bad", "1": "fair", "2": "good"}
    (ours / "config.json").write_text(json.dumps(config))
    assert runs.load(ours).labels == ("bad", "fair", "good")


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
def test_a_new_head_is_a_new_task_and_told(ours, ending, options, task):
    place = saved_again(ours, ending, **options)
    with pytest.warns(
        UserWarning, match="task classification, but the weights have no head for it"
    ):
        assert runs.load(place).name == task


def test_what_nobody_changed_is_not_talked_about(ours):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert runs.load(ours).labels == ("no", "maybe", "yes")


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_what_is_saved_twice_is_the_same_file_by_file(tmp_path, family):
    first = folder(tmp_path / "theirs", family, "ForSequenceClassification")
    for name in ("once", "twice"):
        runs.save(runs.load(first), tmp_path / name)
        first = tmp_path / name
    files = sorted(file.name for file in first.iterdir())
    assert files == sorted(file.name for file in (tmp_path / "once").iterdir())
    for file in files:
        assert (first / file).read_bytes() == (tmp_path / "once" / file).read_bytes(), file


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_others_cut_texts_to_what_the_model_reads(tmp_path, family):
    task = runs.load(folder(tmp_path / "theirs", family, "ForSequenceClassification"))
    runs.save(task, tmp_path / "ours")
    theirs = transformers.pipeline("text-classification", str(tmp_path / "ours"))
    assert theirs("a dog runs " * 99, truncation=True)[0]["label"] in task.labels
