"""The files of SuperGLUE's eight tasks (Wang et al. 2019): questions with choices, from JSONL.

Every task becomes a choice. MultiRC's choices are true and false, for each of its answers; those of
ReCoRD are the entities of the passage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

from regard.data.datasets.records import RecordReader, Source, check_choice, items_of, must_be
from regard.data.readers import JsonLinesReader, Location, field_value, text_of
from regard.data.token_arrays import ReadReport
from regard.errors import DataError

BOOLEANS = ("false", "true")
CONNECTIVES = {"cause": "because", "effect": "so"}  # of COPA's questions
ENTAILED = ("entailment", "not_entailment")
INFERENCES = ("entailment", "contradiction", "neutral")
PLACEHOLDER = "@placeholder"  # in ReCoRD's queries


@dataclass(frozen=True)
class SuperGlueQuestion:
    """A question of one of the tasks.

    fields: its texts, by the names of the file.  choices: the labels of the task, or texts.
    answers: the right choices, of which only ReCoRD has several.  group: of MultiRC, the question
    of which this is one answer.
    """

    fields: Mapping[str, str]
    choices: tuple[str, ...]
    answers: tuple[str, ...]
    group: str = ""


def read_super_glue(
    task: str, data: str | PathLike[str] | Iterable[Any]
) -> RecordReader[SuperGlueQuestion]:
    """The questions of a JSONL file of a task, or of its objects to loop over.

    task: boolq, cb, copa, multirc, record, rte, wic or wsc

    Raises:
        ConfigError: there is no such task.
        DataError: when it is read, for a malformed question, or one without its answer, which the
            files named test hide.
    """
    check_choice("task", task, tuple(READERS))
    return RecordReader(data, partial(_read, task), f"question of {task}", unit="line")


def _read(task: str, source: Source, report: ReadReport) -> Iterator[tuple[int, SuperGlueQuestion]]:
    items = items_of(source) or _lines(str(source))
    for location, item in items:
        for question in READERS[task](must_be(item, dict, "an object", location), location):
            report.read += 1
            yield report.read, question


def _lines(path: str) -> Iterator[tuple[Location, Any]]:
    for number, record in JsonLinesReader(path, ()).records():
        yield (path, number), record


def _texts(record: Mapping[str, Any], names: Iterable[str], location: Location) -> dict[str, str]:
    return {name: text_of(name, field_value(record, name, location), location) for name in names}


def _objects(items: Iterable[Any], what: str, location: Location) -> Iterator[dict[str, Any]]:
    """The items of a list inside a question, which must be objects."""
    return (must_be(item, dict, what, location) for item in items)


def _index(entity: Mapping[str, Any], name: str, location: Location) -> int:
    """A position of a character."""
    index = must_be(field_value(entity, name, location), int, f"`{name}` of an entity", location)
    if index < 0:
        raise DataError(*location, f"`{name}` of an entity must be at least 0, but is {index}.")
    return index


def _label(record: Mapping[str, Any], choices: tuple[str, ...], location: Location) -> str:
    """The right choice: by name, by true and false, or by its number from 0."""
    value = field_value(record, "label", location)
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, int) and 0 <= value < len(choices):
        value = choices[value]
    if value not in choices:
        raise DataError(
            *location, f"has the label {value!r}, but must have one of {', '.join(choices)}."
        )
    return str(value)


def _labelled(
    names: tuple[str, ...],
    choices: tuple[str, ...],
    record: Mapping[str, Any],
    location: Location,
) -> Iterator[SuperGlueQuestion]:
    """BoolQ, CB, RTE, WiC, WSC: some texts and one of the labels."""
    fields = {
        name.rpartition(".")[2]: text for name, text in _texts(record, names, location).items()
    }
    yield SuperGlueQuestion(fields, choices, (_label(record, choices, location),))


def _copa(record: Mapping[str, Any], location: Location) -> Iterator[SuperGlueQuestion]:
    """The cause or the effect of a premise, of two."""
    fields = _texts(record, ("premise", "question", "choice1", "choice2"), location)
    if fields["question"] not in CONNECTIVES:
        asked = fields["question"]
        raise DataError(*location, f"asks for {asked!r}, but must ask for cause or effect.")
    choices = fields["choice1"], fields["choice2"]
    if not all(map(str.strip, choices)):
        raise DataError(*location, f"has an empty choice: {', '.join(map(repr, choices))}.")
    yield SuperGlueQuestion(fields, choices, (_label(record, choices, location),))


def _multirc(record: Mapping[str, Any], location: Location) -> Iterator[SuperGlueQuestion]:
    """The answers to the questions about a passage, each right or wrong."""
    passage = text_of("passage.text", field_value(record, "passage.text", location), location)
    questions = must_be(
        field_value(record, "passage.questions", location), list, "a list of questions", location
    )
    for number, entry in enumerate(_objects(questions, "a question", location)):
        question = text_of("question", field_value(entry, "question", location), location)
        answers = must_be(
            field_value(entry, "answers", location), list, "a list of answers", location
        )
        for answer in _objects(answers, "an answer", location):
            text = text_of("text", field_value(answer, "text", location), location)
            fields = {"passage": passage, "question": question, "answer": text}
            right = (_label(answer, BOOLEANS, location),)
            yield SuperGlueQuestion(fields, BOOLEANS, right, f"{location[1]}:{number}")


def _record(record: Mapping[str, Any], location: Location) -> Iterator[SuperGlueQuestion]:
    """Queries with a placeholder for one of the entities of the passage."""
    passage = text_of("passage.text", field_value(record, "passage.text", location), location)
    spans = must_be(
        field_value(record, "passage.entities", location), list, "a list of entities", location
    )
    # Both ends of an entity are part of it.
    named = (
        passage[_index(entity, "start", location) : _index(entity, "end", location) + 1]
        for entity in _objects(spans, "an entity", location)
    )
    entities = tuple(dict.fromkeys(text for text in named if text.strip()))
    if len(entities) < 2:
        raise DataError(*location, f"has {len(entities)} entities, but a choice needs two.")
    queries = must_be(field_value(record, "qas", location), list, "a list of queries", location)
    for entry in _objects(queries, "a query", location):
        query = text_of("query", field_value(entry, "query", location), location)
        before, placed, after = query.partition(PLACEHOLDER)
        if not placed:
            raise DataError(*location, f"has a query without {PLACEHOLDER}: {query!r:.80}.")
        answers = must_be(
            field_value(entry, "answers", location), list, "a list of answers", location
        )
        answer_items = _objects(answers, "an answer", location)
        texts = (text_of("text", field_value(a, "text", location), location) for a in answer_items)
        right = tuple(dict.fromkeys(texts))
        if not right:
            raise DataError(*location, "has a query without an answer.")
        fields = {"passage": passage, "before": before, "after": after}
        yield SuperGlueQuestion(fields, entities, right)


Read = Callable[[Mapping[str, Any], Location], Iterator[SuperGlueQuestion]]
# task -> what makes questions of an object of its file
READERS: dict[str, Read] = {
    "boolq": partial(_labelled, ("passage", "question"), BOOLEANS),
    "cb": partial(_labelled, ("premise", "hypothesis"), INFERENCES),
    "copa": _copa,
    "multirc": _multirc,
    "record": _record,
    "rte": partial(_labelled, ("premise", "hypothesis"), ENTAILED),
    "wic": partial(_labelled, ("word", "sentence1", "sentence2"), BOOLEANS),
    "wsc": partial(_labelled, ("text", "target.span1_text", "target.span2_text"), BOOLEANS),
}
