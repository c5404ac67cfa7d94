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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [\n{]}', r"x.json:2: is not JSON: .* \(column 2\)"),
        ("", r"x.json: is not JSON"),
        ([], r"x.json: the whole must be an object, but is a list"),
        ({"date": []}, r"x.json: has no field 'data'\. It has: date\. Did you mean 'date'"),
        ({"data": []}, r"x.json: has not one question"),
        ({"data": ["x"]}, r"data\[0\]: must be a question or an article"),
        ({"data": [{"paragraphs": 1}]}, r"data\[0\]: `paragraphs` must be a list, but is a whole"),
        ({"data": [{"paragraphs": [{"context": "x"}]}]}, r"paragraphs\[0\]: has no field 'qas'"),
        ({"data": [{"paragraphs": [{"qas": [asked()]}]}]}, r"has no field 'context'"),
        (whole(asked(question=None)), r"qas\[0\]: field 'question' must be text, but is missing"),
        (whole(asked(start="4")), r"qas\[0\]: an answer's start must be a whole number, but is te"),
        (whole(asked(start=True)), r"start must be a whole number, but is true or false"),
        (whole(asked(text="")), r"qas\[0\]: an answer is empty"),
        (whole(asked(is_impossible=True)), r"'q1' has 1 answers, but `is_impossible` is true"),
        (
            whole(asked(answers=[], is_impossible=False)),
            r"has 0 answers, but `is_impossible` is false",
        ),
        (whole(asked(answers=["x"])), r"an answer must be an object, but is text"),
        (whole(asked(answers={"text": ["a"], "answer_start": []})), r"has 1 answers, but 0 starts"),
    ],
)
def test_malformed_files_raise_located_errors(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        list(read_squad(write(tmp_path / "x.json", content)))


PLAIN = {"context": "It rains.", "question": "Wet?", "choices": ["yes", "no"], "answer": "yes"}
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": 2}, r"x.jsonl:2: `answer` must be a number from 0 to 1 or .*, but is 2"),
        *(({"answer": value}, f"but is {value!r}") for value in (-1, True, 0.0, "maybe", None)),
        ({"choices": ["yes", "yes"]}, "but is 'yes'"),
        ({"choices": ["yes"]}, r"must have at least two choices, but has 1"),
        ({"choices": "yes"}, r"the choices must be a list, but is text"),
        ({"choices": ["yes", None]}, r"field 1 must be text, but is missing \(null\)"),
        ({"context": "", "question": ""}, r"has neither a `context` nor a `question`"),
        ({"context": None}, r"field 'context' must be text, but is missing"),
    ],
)
def test_malformed_questions_raise_located_errors(tmp_path, change, message):
    lines = [json.dumps(PLAIN), json.dumps(PLAIN | change)]
    path = write(tmp_path / "x.jsonl", "\n".join(lines))
    with pytest.raises(DataError, match=message):
        list(read_choices(path))


def test_unknown_formats_raise_errors(tmp_path):
    missing = {"options": ["a", "b"], "question": "?", "answer": 0}
    with pytest.raises(DataError, match=r"<list>:1: has no field 'choices'\. It has: options, q"):
        list(read_choices([missing]))
    with pytest.raises(DataError, match=r"<list>:1: must be an object, or as in DREAM a list"):
        list(read_choices(["x"]))
    with pytest.raises(DataError, match=r"x.txt: has an ending that tells no format"):
        list(read_choices(write(tmp_path / "x.txt", "x")))
    for name, text, message in (
        ("x.json", "[1,\n2,", r"x.json:2: is not JSON"),
        ("x.json", "", r"x.json: is empty"),
        ("x.json", "[]", r"x.json: has not one question"),
        ("y.jsonl", "[1]", r"y.jsonl:1: must be a JSON object, but is a list"),
    ):
        with pytest.raises(DataError, match=message):
            list(read_choices(write(tmp_path / name, text)))
