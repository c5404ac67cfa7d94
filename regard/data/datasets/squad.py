"""Questions about contexts with their answers as spans: SQuAD 1.1, 2.0, and all in that format.

A file is JSON: articles, of paragraphs, of questions. It is read into memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any, Literal, NamedTuple

from regard.data.datasets.records import (
    RecordReader,
    Source,
    check_choice,
    items_of,
    must_be,
    read_json_file,
)
from regard.data.readers import Location, field_value, text_of, texts_of
from regard.data.token_arrays import ReadReport
from regard.errors import DataError

OnMisaligned = Literal["error", "skip", "fix"]


class AnswerSpan(NamedTuple):
    """A part of the context: its text, and the character of the context where it begins."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question about a context. Each of its `answers` is right; an impossible one has none."""

    id: str
    context: str
    question: str
    answers: tuple[AnswerSpan, ...] = ()
    impossible: bool = False
    title: str = ""


def read_squad(
    data: str | PathLike[str] | Iterable[Any],
    *,
    labels: bool = True,
    on_misaligned: OnMisaligned = "error",
) -> RecordReader[Question]:
    """The questions of a file in SQuAD's format, or of anything to loop over.

    data: a file of SQuAD; or its articles, or flat records with `id`, `context`, `question` and
        `answers` {"text": […], "answer_start": […]}, in a `.jsonl` file or to loop over
    labels: whether answers are read
    on_misaligned: if the context does not have an answer's text at its start, raise an error,
        `skip` the question, or `fix` the answer: it is the nearest occurrence; the report counts
        both.

    Raises:
        ConfigError: `on_misaligned` is something else.
        DataError: when it is read, for a malformed question.
    """
    check_choice("on_misaligned", on_misaligned, ("error", "skip", "fix"))
    reader = partial(_questions, labels=labels, on_misaligned=on_misaligned)
    return RecordReader(data, reader, "question", unit="question")


def _questions(
    source: Source, report: ReadReport, labels: bool, on_misaligned: OnMisaligned
) -> Iterator[tuple[int, Question]]:
    for location, item in _records(items_of(source) or _articles(str(source))):
        report.read += 1
        question = item if isinstance(item, Question) else _question(item, location, labels)
        placed = _with_placed_answers(question, location, report, on_misaligned)
        if placed is not None:
            yield report.read, placed


def _articles(path: str) -> Iterator[tuple[Location, Any]]:
    """The articles of a file, with their locations."""
    whole: Location = (path, None)
    articles = field_value(must_be(read_json_file(path), dict, "the whole", whole), "data", whole)
    for i, article in enumerate(must_be(articles, list, "`data`", whole)):
        yield (f"{path}, data[{i}]", None), article


def _records(entries: Iterable[tuple[Location, Any]]) -> Iterator[tuple[Location, Any]]:
    """Questions or flat records: those of articles, and others as they are."""
    for (name, line), item in entries:
        if isinstance(item, Question):
            yield (name, line), item
            continue
        if not isinstance(item, Mapping):
            raise DataError(name, line, "must be a question or an article: an object with names.")
        if "paragraphs" not in item:
            yield (name, line), item
            continue
        paragraphs = must_be(item["paragraphs"], list, "`paragraphs`", (name, line))
        for i, paragraph in enumerate(paragraphs):
            location = f"{name}.paragraphs[{i}]", line
            must_be(paragraph, dict, "a paragraph", location)
            questions = must_be(field_value(paragraph, "qas", location), list, "`qas`", location)
            context = field_value(paragraph, "context", location) if questions else ""
            for k, record in enumerate(questions):
                inner = f"{location[0]}.qas[{k}]", line
                must_be(record, dict, "a question", inner)
                yield inner, {**record, "context": context, "title": item.get("title")}


def _question(record: Mapping[str, Any], location: Location, labels: bool) -> Question:
    record = {"id": ":".join(str(part) for part in location if part is not None), **record}
    id, context, question = texts_of(record, ("id", "context", "question"), location)
    title = text_of("title", record.get("title") or "", location)
    if not labels:
        return Question(id, context, question, title=title)
    if "answers" not in record:
        problem = f"question {id!r} has no `answers`."
        raise DataError(*location, problem, "In Python, labels=False reads the questions alone.")
    answers = _answers(record["answers"], location)
    impossible = record.get("is_impossible", not answers)
    if must_be(impossible, bool, "`is_impossible`", location) == bool(answers):
        has = f"{len(answers)} answers" if answers else "no answer"
        problem = f"question {id!r} has {has}, but `is_impossible` is {str(impossible).lower()}."
        raise DataError(*location, problem)
    return Question(id, context, question, answers, impossible, title)


def _answers(answers: object, location: Location) -> tuple[AnswerSpan, ...]:
    """From a list of objects, or an object of two lists."""
    if isinstance(answers, Mapping):
        texts = must_be(field_value(answers, "text", location), list, "`text`", location)
        starts = must_be(
            field_value(answers, "answer_start", location), list, "`answer_start`", location
        )
        if len(texts) != len(starts):
            problem = f"has {len(texts)} answers, but {len(starts)} starts of them."
            raise DataError(*location, problem)
        return tuple(_answer(*pair, location) for pair in zip(texts, starts, strict=True))
    records = must_be(answers, list, "`answers`", location)
    for record in records:
        must_be(record, dict, "an answer", location)
    return tuple(
        _answer(
            field_value(r, "text", location), field_value(r, "answer_start", location), location
        )
        for r in records
    )


def _answer(text: object, start: object, location: Location) -> AnswerSpan:
    if not must_be(text, str, "an answer's text", location):
        hint = "A question without one has no answers: []."
        raise DataError(*location, "an answer is empty.", hint)
    text = text_of("text", text, location)
    return AnswerSpan(text, must_be(start, int, "an answer's start", location))


def _with_placed_answers(
    question: Question, location: Location, report: ReadReport, on_misaligned: OnMisaligned
) -> Question | None:
    """The question with answers that begin where they say; None: it is to be left out."""
    answers: list[AnswerSpan] = []
    for answer in question.answers:
        if answer.start >= 0 and question.context.startswith(answer.text, answer.start):
            answers.append(answer)
            continue
        nearest = _nearest(answer, question.context)
        if on_misaligned == "error" or (on_misaligned == "fix" and nearest is None):
            raise _misplaced_error(question, answer, nearest, location)
        if on_misaligned == "skip" or nearest is None:
            report.note("an answer is not where it should be, question left out", report.read)
            return None
        report.note("answer moved to its nearest occurrence", report.read)
        answers.append(AnswerSpan(answer.text, nearest))
    return replace(question, answers=tuple(answers))


def _nearest(answer: AnswerSpan, context: str) -> int | None:
    """Where the answer's text begins, as near to its start as it occurs; None: it does not."""
    start = max(0, answer.start)
    after = context.find(answer.text, start)
    before = context.rfind(answer.text, 0, start + len(answer.text))
    starts = [place for place in (before, after) if place >= 0]
    return min(starts, key=lambda place: abs(place - start)) if starts else None


def _misplaced_error(
    question: Question, answer: AnswerSpan, nearest: int | None, location: Location
) -> DataError:
    there = question.context[max(0, answer.start) :][: len(answer.text)]
    problem = (
        f"question {question.id!r}: the answer {answer.text!r} should begin at character "
        f"{answer.start} of the context, but there is {there!r}."
    )
    hint = "The context does not have it at all: on_misaligned='skip' leaves such questions out."
    if nearest is not None:
        hint = f"It occurs at {nearest}: on_misaligned='fix' takes the nearest occurrence, "
        hint += "'skip' leaves the question out."
    return DataError(*location, problem, hint)
