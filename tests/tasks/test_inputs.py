"""Rows and options of every form: an answer is that of the plain form, or an error names it.

Tests of `regard.tasks.embedder` and `regard.tasks.multi_label`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import every_task
import pytest
import torch
from every_task import ENCODER_DECODERS, MAKERS, task_of

from regard.errors import ConfigError, RegardError
from regard.tasks import task_class

pandas = pytest.importorskip("pandas")

TEXTS = every_task.lines(12)
# task -> the target of a row
TARGETS = {
    "classification": lambda n: ["no", "perhaps", "yes"][n % 3],
    "regression": lambda n: n / 3,
    "multi-label-classification": lambda n: [["old"], ["sunny", "warm"]][n % 2],
    **dict.fromkeys(ENCODER_DECODERS, lambda n: TEXTS[-n]),
}


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TARGETS)
def test_named_columns_score_as_rows_do(name):
    rows = [(text, TARGETS[name](n)) for n, text in enumerate(TEXTS)]
    frame = pandas.DataFrame(
        {"id": range(12), "stars": [row[1] for row in rows], "review": [row[0] for row in rows]}
    )
    task, named = task_named(name), ["review", "stars"]
    expected = repr(task.evaluate(rows).named)  # NaN, too
    assert repr(task.evaluate(frame, columns=named).named) == expected
    for table, columns in (
        (frame.to_dict("records"), named),
        (list(frame.itertuples(False, None)), [2, 1]),
        (iter(frame.to_dict("records")), tuple(named)),
    ):
        assert repr(task.evaluate(table, columns=columns).named) == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["classification", "regression", "text-to-text"])
def test_a_file_scores_by_its_header_as_its_rows_do(name, tmp_path):
    rows = [(text, TARGETS[name](n)) for n, text in enumerate(TEXTS)]
    target = "label" if name != "text-to-text" else "summary"
    frame = pandas.DataFrame(rows, columns=["text", target])[[target, "text"]]
    frame.to_csv(tmp_path / "rows.csv", index=False)
    path, task = str(tmp_path / "rows.csv"), task_named(name)
    assert repr(task.evaluate(path).named) == repr(task.evaluate(rows).named)
    if name == "classification":
        assert str(task.classification_report(path)) == str(task.classification_report(rows))
        frame.rename(columns={"label": "mood", "text": "note"}).to_csv(path, index=False)
        with pytest.raises(RegardError, match=":2: has the label .*, which is none of"):
            task.evaluate(path)
        assert task.evaluate(path, columns=["note", "mood"]).named == task.evaluate(rows).named
        with pytest.raises(RegardError, match="gone"):
            task.evaluate(frame, columns=["text", "gone"])


def test_pairs_are_read_from_named_columns_in_any_order():
    rows = [(a, b, n) for n, (a, b) in enumerate(zip(TEXTS, TEXTS[1:], strict=False))]
    frame = pandas.DataFrame(rows, columns=["a", "b", "c"])[["c", "a", "b"]]
    task = task_named("embedding")
    assert task.evaluate(frame, columns=["a", "b", "c"]).named == task.evaluate(rows).named


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
    named = type(plain)(plain.module, plain.tokenizer, labels=["a", "b", "c"])
    with pytest.raises(ConfigError, match="must name texts, and the labels all or none"):
        named.rows_to_evaluate([file], ["a", "b", "c"])


# ---- options and names of files

# task -> its options that are whole numbers, and the method that has them


PAIRS = ("next-sentence", "sentence-order", "question-answering", "multiple-choice", "captioning")


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
