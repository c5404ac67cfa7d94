"""Questions with choices come out of DREAM, SWAG and plain JSON lines with the right one marked."""

from __future__ import annotations

import csv
import gzip
import json

import pytest

from regard.data import ChoiceQuestion, read_choices
from regard.errors import DataError

PLAIN = {"context": "It rains.", "question": "Wet?", "choices": ["yes", "no"], "answer": "yes"}
SWAG = (
    ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source"]
    + [f"ending{i}" for i in range(4)]
    + ["label"]
)


def write(path, text):
    path.write_text(text)
    return path


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


def test_answers_are_given_by_number_or_text(tmp_path):
    other = {"question": "Dry?", "choices": ["yes", "no", "so so"], "answer": 2, "id": "x"}
    expected = [
        ChoiceQuestion("It rains.", "Wet?", ("yes", "no"), 0),
        ChoiceQuestion("", "Dry?", ("yes", "no", "so so"), 2),
    ]
    lines = json.dumps(PLAIN) + "\n\n" + json.dumps(other) + "\n"
    for data in (
        write(tmp_path / "x.jsonl", lines),
        write(tmp_path / "lines.json", lines),
        write(tmp_path / "whole.json", json.dumps([PLAIN, other])),
        [PLAIN, other],
        (PLAIN, expected[1]),
    ):
        assert list(read_choices(data)) == expected
    hidden = {name: value for name, value in PLAIN.items() if name != "answer"}
    assert list(read_choices([hidden], labels=False)) == [
        ChoiceQuestion("It rains.", "Wet?", ("yes", "no"))
    ]


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
