"""`evaluate(columns=...)`, and the warning where one text is the name of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from every_task import MAKERS, TAGGING, lines, make, task_of

import regard
from regard.errors import RegardError
from regard.tasks.infer_task import ENCODER_DECODERS

pandas = pytest.importorskip("pandas")

TEXTS = lines(12)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folders = make(tmp_path_factory.mktemp("folders"))
    return {name: regard.load(folder) for name, folder in folders.items()}


# task -> the target of a row
TARGETS = {
    "classification": lambda n: ["no", "perhaps", "yes"][n % 3],
    "regression": lambda n: n / 3,
    "multi-label-classification": lambda n: [["old"], ["sunny", "warm"]][n % 2],
    **dict.fromkeys(ENCODER_DECODERS, lambda n: TEXTS[-n]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("order", ["frame", "mappings", "tuples", "iterator"])
def test_named_columns_score_as_rows_do(tasks, name, order):
    rows = [(text, TARGETS[name](n)) for n, text in enumerate(TEXTS)]
    frame = pandas.DataFrame(
        {"id": range(12), "stars": [row[1] for row in rows], "review": [row[0] for row in rows]}
    )
    tables = {
        "frame": (frame, ["review", "stars"]),
        "mappings": (frame.to_dict("records"), ["review", "stars"]),
        "tuples": (list(frame.itertuples(False, None)), [2, 1]),
        "iterator": (iter(frame.to_dict("records")), ("review", "stars")),
    }
    table, columns = tables[order]
    found = tasks[name].evaluate(table, columns=columns).named
    assert repr(found) == repr(tasks[name].evaluate(rows).named)  # NaN, too


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["classification", "regression", "text-to-text"])
def test_a_file_scores_by_its_header_as_its_rows_do(tasks, name, tmp_path):
    rows = [(text, TARGETS[name](n)) for n, text in enumerate(TEXTS)]
    target = "label" if name != "text-to-text" else "summary"
    frame = pandas.DataFrame(rows, columns=["text", target])[[target, "text"]]
    frame.to_csv(tmp_path / "rows.csv", index=False)
    path, task = str(tmp_path / "rows.csv"), tasks[name]
    assert repr(task.evaluate(path).named) == repr(task.evaluate(rows).named)
    if name == "classification":
        assert str(task.classification_report(path)) == str(task.classification_report(rows))
        frame.rename(columns={"label": "mood", "text": "note"}).to_csv(path, index=False)
        with pytest.raises(RegardError, match="has the label .note., which is none of"):
            task.evaluate(path)
        assert task.evaluate(path, columns=["note", "mood"]).named == task.evaluate(rows).named


@pytest.mark.filterwarnings("ignore")
def test_pairs_are_read_from_named_columns_in_any_order(tasks):
    rows = [(a, b, n) for n, (a, b) in enumerate(zip(TEXTS, TEXTS[1:], strict=False))]
    frame = pandas.DataFrame(rows, columns=["a", "b", "c"])[["c", "a", "b"]]
    task = tasks["embedding"]
    assert task.evaluate(frame, columns=["a", "b", "c"]).named == task.evaluate(rows).named


def test_columns_that_are_not_there_raise_an_error(tasks):
    frame = pandas.DataFrame({"text": TEXTS, "label": ["yes"] * 12})
    with pytest.raises(RegardError, match="gone"):
        tasks["classification"].evaluate(frame, columns=["text", "gone"])


# ---- names of files

RECORDS = ("question-answering", "multiple-choice")
SINGLE = [name for name in MAKERS if task_of(name) not in (*RECORDS, "captioning")]


@pytest.mark.parametrize("name", SINGLE)
def test_one_text_that_is_the_name_of_a_file_is_a_warning(tasks, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("text\na warm mat\n")
    task = tasks[name]
    text = "data.csv [MASK]" if name in ("fill-mask", "masked-language-modeling") else "data.csv"
    if name in ("next-sentence", "sentence-order"):
        return  # it reads pairs
    Path(text).write_text("")
    with pytest.warns(UserWarning, match="is processed as a text, but is a file") as said:
        task.predict(text)
    of_words = task_of(name) in (*TAGGING, "embedding")
    assert said[0].filename == __file__ or of_words
