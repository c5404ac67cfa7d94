"""Rows and options of every form: an answer is that of the plain form, or an error names it.

Tests of `regard.tasks.embedder` and `regard.tasks.multi_label`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from every_task import MAKERS, task_of

from regard.tasks import task_class

pandas = pytest.importorskip("pandas")


@cache
def task_named(name: str) -> Any:
    """A task with random weights that are large enough to tell texts apart."""
    torch.manual_seed(1)
    task = MAKERS[name]()
    with torch.no_grad():
        for weights in task.module.parameters():
            weights.add_(torch.randn_like(weights), alpha=0.3)
    task.module.eval()
    return task


# ---- columns


@pytest.mark.parametrize("first", [0, 1, 4])
def test_labels_that_are_numbers_are_no_columns(first, tmp_path):
    plain = task_named("multi-label-classification")
    labels = [str(first + i) for i in range(len(plain.labels))]
    task = type(plain)(plain.module, plain.tokenizer, labels=labels)
    rows = list(zip(["the cat", "a mat"], [labels[:1], labels[1:]], strict=True))
    wanted = [score.value for score in task.evaluate(rows).named]
    file = tmp_path / "rows.tsv"
    file.write_text("".join(f"{text}\t{json.dumps(targets)}\n" for text, targets in rows))
    for columns in ((), (0, 1)):
        found = task.evaluate(task.rows_to_evaluate([file], columns)).named
        assert [score.value for score in found] == wanted
    assert [score.value for score in task.evaluate(rows, columns=[0, 1]).named] == wanted


def test_numbered_columns_of_labels_are_still_read(tmp_path):
    plain = task_named("multi-label-classification")
    task = type(plain)(plain.module, plain.tokenizer, labels=["1", "2", "3"])
    file = tmp_path / "rows.tsv"
    file.write_text("the cat\t1\t0\t1\na mat\t0\t1\t0\n")
    found = task.evaluate(task.rows_to_evaluate([file], [0, 1, 2, 3])).named
    wanted = task.evaluate([("the cat", ["1", "3"]), ("a mat", ["2"])]).named
    assert [score.value for score in found] == [score.value for score in wanted]


# ---- options and names of files

# task -> its options that are whole numbers, and the method that has them


PAIRS = ("next-sentence", "question-answering", "multiple-choice", "captioning")


PLAIN = [name for name in MAKERS if not task_class(task_of(name)).example_input]


@pytest.mark.parametrize("name", [name for name in PLAIN if task_of(name) not in PAIRS])
def test_one_text_that_is_the_name_of_a_file_is_a_warning(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    masked = name in ("fill-mask", "masked-language-modeling")
    Path(text := "data.csv [MASK]" if masked else "data.csv").write_text("text\na warm mat\n")
    task = task_named(name)
    for method in {"predict", "generate"}.intersection(dir(task)):
        with pytest.warns(UserWarning, match="is processed as a text, but is a file") as said:
            getattr(task, method)(text)
        assert said[0].filename == __file__
