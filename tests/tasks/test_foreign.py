"""Which task a folder of another library is for."""

from __future__ import annotations

import pytest
from tiny_folders import folder

from regard import runs

CASES = [
    ("bert", "ForSequenceClassification", "classification"),
    ("bert", "ForTokenClassification", "tagging"),
    ("bert", "ForQuestionAnswering", "question-answering"),
    ("bert", "ForMultipleChoice", "multiple-choice"),
    ("bert", "ForMaskedLM", "masked-words"),
    ("bert", "ForPreTraining", "masked-words"),
    ("bert", "ForNextSentencePrediction", "next-sentence"),
    ("roberta", "ForMaskedLM", "masked-words"),
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
