"""Questions about contexts with their answers as spans: SQuAD 1.1, 2.0, and all in that format.

A file is JSON: articles, of paragraphs, of questions. It is read into memory as a whole.
"""

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
    data: str | PathLike[str] | Iterable[Any], *, on_misaligned: OnMisaligned = "error"
) -> RecordReader[Question]:
    """The questions of a file in SQuAD's format, or of anything to loop over.

    data: a file of SQuAD; or its articles, or flat records with `id`, `context`, `question` and
        `answers` {"text": […], "answer_start": […]}, in a `.jsonl` file or to loop over
    on_misaligned: if the context does not have an answer's text at its start, raise an error,
        `skip` the question, or `fix` the answer: it is the nearest occurrence; the report counts
        both.

    Raises:
        ConfigError: `on_misaligned` is something else.
        DataError: when it is read, for a malformed question.
    """
    check_choice("on_misaligned", on_misaligned, ("error", "skip", "fix"))
    reader = partial(_questions, on_misaligned=on_misaligned)
    return RecordReader(data, reader, "question", unit="question")


def _questions(
    source: Source, report: ReadReport, on_misaligned: OnMisaligned
) -> Iterator[tuple[int, Question]]:
    for location, item in _records(items_of(source) or _articles(str(source))):
        report.read += 1
        question = item if isinstance(item, Question) else _question(item, location)
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


def _question(record: Mapping[str, Any], location: Location) -> Question:
    record = {"id": ":".join(str(part) for part in location if part is not None), **record}
    id, context, question = texts_of(record, ("id", "context", "question"), location)
    title = text_of("title", record.get("title") or "", location)
    answers = _answers(field_value(record, "answers", location), location)
    impossible = record.get("is_impossible", not answers)
    if must_be(impossible, bool, "`is_impossible`", location) == bool(answers):
        problem = f"question {id!r} has {len(answers)} answers, but `is_impossible` is "
        raise DataError(*location, f"{problem}{str(impossible).lower()}.")
    return Question(id, context, question, answers, impossible, title)


def _answers(answers: object, location: Location) -> tuple[AnswerSpan, ...]:
    """From a list of objects, or an object of two lists."""
    names = ("text", "answer_start")
    if isinstance(answers, Mapping):
        columns = [
            must_be(field_value(answers, name, location), list, f"`{name}`", location)
            for name in names
        ]
        if len(columns[0]) != len(columns[1]):
            problem = f"has {len(columns[0])} answers, but {len(columns[1])} starts of them."
            raise DataError(*location, problem)
        pairs = list(zip(*columns, strict=True))
    else:
        records = must_be(answers, list, "`answers`", location)
        records = [must_be(record, dict, "an answer", location) for record in records]
        pairs = [tuple(field_value(r, name, location) for name in names) for r in records]
    spans = []
    for text, start in pairs:
        if not must_be(text, str, "an answer's text", location):
            hint = "A question without one has no answers: []."
            raise DataError(*location, "an answer is empty.", hint)
        start = must_be(start, int, "an answer's start", location)
        spans.append(AnswerSpan(text_of("text", text, location), start))
    return tuple(spans)


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
            actual = question.context[max(0, answer.start) :][: len(answer.text)]
            problem = (
                f"question {question.id!r}: the answer {answer.text!r} should begin at character "
                f"{answer.start} of the context, but there is {actual!r}."
            )
            hint = "on_misaligned='fix' takes the nearest occurrence, 'skip' leaves questions out."
            raise DataError(*location, problem, hint)
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
