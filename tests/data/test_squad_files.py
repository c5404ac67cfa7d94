"""Published files of questions with answers and of questions with choices."""

from __future__ import annotations

import json

import pytest

from regard.data import read_choices, read_squad


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
