"""Files of questions with answers and of questions with choices."""

from __future__ import annotations

import csv
import gzip
import json

import pytest

from regard.data import AnswerSpan, ChoiceQuestion, read_choices, read_squad
from regard.errors import ConfigError, DataError

CONTEXT = "The cat sat. The cat ran."


def asked(id="q1", text="cat", start=4, **more):
    answers = [{"text": text, "answer_start": start}]
    return {"id": id, "question": "Who?", "answers": answers} | more


def whole(*questions):
    return {"version": "x", "data": [{"title": "T", "paragraphs": [paragraph(*questions)]}]}


def paragraph(*questions):
    return {"context": CONTEXT, "qas": list(questions)}


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("file", "count", "impossible"),
    [
        ("squad/dev-v1.1.reconstructed.json", 10570, 0),
        ("squad/dev-v2.0.reconstructed.json", 11873, 5945),
    ],
)
def test_squad_has_the_published_counts(shared, file, count, impossible):
    read = read_squad(shared(file))
    found = list(read)
    assert len(found) == len({q.id for q in found}) == count
    assert sum(q.impossible for q in found) == impossible
    assert all(bool(q.answers) != q.impossible for q in found)
    assert all(q.context[a.start :][: len(a.text)] == a.text for q in found for a in q.answers)
    assert not read.report.events and found[0].title == "1973_oil_crisis"


def test_misplaced_answers_raise_errors_are_moved_or_left_out():
    def read(start, text="cat", on_misaligned="error"):
        data = read_squad(
            whole(asked(), asked("q2", text, start))["data"], on_misaligned=on_misaligned
        )
        return list(data), data.report

    with pytest.raises(
        DataError,
        match=r"<list>\.paragraphs\[0\]\.qas\[1\]:1: question 'q2': the answer 'cat' should begin "
        r"at character 5 of the context, but there is 'at '\. .*'fix'",
    ):
        read(5)
    for start, moved in ((5, 4), (3, 4), (10, 4), (11, 17), (99, 17), (-21, 4), (16, 17)):
        questions, report = read(start, on_misaligned="fix")
        assert questions[1].answers == (AnswerSpan("cat", moved),)
        assert report.events["answer moved to its nearest occurrence"]["count"] == 1
    questions, report = read(5, on_misaligned="skip")
    assert [q.id for q in questions] == ["q1"] and (report.read, report.kept) == (2, 1)
    assert "question left out: 1 (first at question 2)" in str(report)
    with pytest.raises(DataError, match="'dog' should begin"):
        read(5, "dog", on_misaligned="fix")
    with pytest.raises(
        ConfigError, match="`on_misaligned` must be error, skip or fix, but is 'move'"
    ):
        read(4, on_misaligned="move")
    with pytest.raises(DataError, match=r"no question is left\. .*left out: 1"):
        list(read_squad(whole(asked(start=5))["data"], on_misaligned="skip"))


SWAG = (
    ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source"]
    + [f"ending{i}" for i in range(4)]
    + ["label"]
)


def swag(path, *rows, header=SWAG):
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


@pytest.mark.parametrize(("part", "count"), [("train", 6116), ("dev", 2040), ("test", 2041)])
def test_dream_has_the_published_counts(shared, part, count):
    path = shared(f"dream/data/{part}.json")
    read = read_choices(path)
    found = list(read)
    assert len(found) == read.report.kept == count
    given = [
        (question["question"], question["answer"])
        for _, questions, _ in json.loads(path.read_text(encoding="utf-8"))
        for question in questions
    ]
    assert [(c.question, c.choices[c.answer]) for c in found] == given
    assert all(len(c.choices) == 3 for c in found)


def test_turns_of_dream_are_lines_of_the_context(tmp_path):
    asked = [{"question": q, "choice": ["a", "b", "c"], "answer": "c"} for q in ("Why?", "Who?")]
    item = [["M: Hello.", "W: Hi."], asked, "5-1"]
    expected = [
        ChoiceQuestion("M: Hello.\nW: Hi.", q, ("a", "b", "c"), 2) for q in ("Why?", "Who?")
    ]
    path = write(tmp_path / "x.json", json.dumps([item], indent=1))
    for data in (path, [item], expected):
        read = read_choices(data)
        assert list(read) == list(read) == expected
    asked[0]["answer"] = "d"
    write(path, json.dumps([item, item]))
    message = r"x.json, item 0 \(5-1\): `answer` must be .* the choices 'a', 'b', 'c', but is 'd'"
    with pytest.raises(DataError, match=message):
        list(read_choices(path))


def test_swag_gives_a_start_and_four_ends(tmp_path):
    ends = ['pats her, then "leaves".', "turns.", "walks.", "wheels."]
    row = ["0", "v1", "183", "Students look. She", "Students look.", "She", "gold", *ends, "2"]
    expected = [ChoiceQuestion("Students look.", "She", tuple(ends), 2)]
    path = swag(tmp_path / "train.csv", row)
    assert list(read_choices(path)) == expected
    compressed = tmp_path / "train.csv.gz"
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_choices(compressed)) == expected
    as_mapping = dict(zip(SWAG, row, strict=True)) | {"label": 2}
    assert list(read_choices([as_mapping])) == expected

    hidden = swag(tmp_path / "test.csv", row[:-1], header=SWAG[:-1])
    with pytest.raises(DataError, match=r"test.csv:2: `label` must be a number"):
        list(read_choices(hidden))
    assert list(read_choices(hidden, labels=False)) == [
        ChoiceQuestion("Students look.", "She", (*ends,))
    ]
    with pytest.raises(DataError, match=r"x.csv:2: `label` must be .*, but is 4"):
        list(read_choices(swag(tmp_path / "x.csv", [*row[:-1], "4"])))
    with pytest.raises(DataError, match=r"x.csv:2: .*but is 'two'"):
        list(read_choices(swag(tmp_path / "x.csv", [*row[:-1], "two"])))
