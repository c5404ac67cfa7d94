"""Questions about contexts with their answers as spans: SQuAD 1.1, 2.0, and all in that format.

A file is JSON: articles, of paragraphs, of questions. While it is read it is in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any, Literal, NamedTuple

from regard.data.datasets.records import Place, RecordReader, Source, json_of, must_be, one_of
from regard.data.files import ending
from regard.data.readers import ItemReader, JsonLinesReader, found, picked, text_of
from regard.data.token_arrays import ReadReport
from regard.errors import DataError

Misplaced = Literal["error", "skip", "move"]


class AnswerSpan(NamedTuple):
    """A part of the context: its text, and the character of the context where it begins."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question about a context. Of several `answers` each is right; impossible ones have none."""

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
    misplaced: Misplaced = "error",
) -> RecordReader[Question]:
    """The questions of a file in SQuAD's format, or of anything to loop over.

    Lines of a `.jsonl` file, and items of other data, are articles as in the file, or flat records
    with `id`, `context`, `question` and `answers` {"text": […], "answer_start": […]}.

    `misplaced`: what is done where an answer does not stand in the context where its start says:
    refuse it, `skip` its question, or `move` it to the nearest place where it stands. Both are
    counted in the report. With `labels=False` answers are not read at all.
    """
    one_of("misplaced", misplaced, ("error", "skip", "move"))
    read = partial(_questions, reader=_Reader(labels, misplaced))
    return RecordReader(data, read, "question", unit="question")


def _questions(
    source: Source, report: ReadReport, reader: _Reader
) -> Iterator[tuple[int, Question]]:
    for place, item in _flat(_entries(source)):
        report.read += 1
        question = item if isinstance(item, Question) else reader.question(item, place)
        placed = reader.placed(question, place, report)
        if placed:
            yield report.read, placed


def _entries(source: Source) -> Iterator[tuple[Place, Any]]:
    """Articles or flat records, with what an error calls each."""
    if isinstance(source, ItemReader):
        for number, item in source.whole():
            yield (source.file_of(0), number), item
    elif ending(source) in (".jsonl", ".ndjson"):
        for number, record in JsonLinesReader(source, ()).records():
            yield (source, number), record
    else:
        place = (source, None)
        articles = found(must_be(json_of(source), dict, "the whole", place), "data", *place)
        for i, article in enumerate(must_be(articles, list, "`data`", place)):
            yield (f"{source}, data[{i}]", None), article


def _flat(entries: Iterable[tuple[Place, Any]]) -> Iterator[tuple[Place, Any]]:
    """Questions or flat records: articles are taken apart."""
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
            inside = f"{name}.paragraphs[{i}]"
            must_be(paragraph, dict, "a paragraph", (inside, line))
            asked = must_be(found(paragraph, "qas", inside, line), list, "`qas`", (inside, line))
            for k, record in enumerate(asked):
                place = (f"{inside}.qas[{k}]", line)
                must_be(record, dict, "a question", place)
                context = found(paragraph, "context", inside, line)
                yield place, {**record, "context": context, "title": item.get("title")}


@dataclass(frozen=True)
class _Reader:
    """Records made questions, as the options say."""

    labels: bool
    misplaced: Misplaced

    def question(self, record: Mapping[str, Any], place: Place) -> Question:
        id, context, asked = picked(record, ("id", "context", "question"), *place)
        title = text_of(*place, "title", record.get("title") or "")
        if not self.labels:
            return Question(id, context, asked, title=title)
        if "answers" not in record:
            problem = f"question {id!r} has no `answers`."
            raise DataError(*place, problem, "To read questions alone, give labels=False.")
        answers = _answers(record["answers"], place)
        impossible = record.get("is_impossible", not answers)
        if must_be(impossible, bool, "`is_impossible`", place) == bool(answers):
            has = f"{len(answers)} answers" if answers else "no answer"
            problem = (
                f"question {id!r} has {has}, but `is_impossible` is {str(impossible).lower()}."
            )
            raise DataError(*place, problem)
        return Question(id, context, asked, answers, impossible, title)

    def placed(self, question: Question, place: Place, report: ReadReport) -> Question | None:
        """The question with each answer where it stands, or None where it is to be left out."""
        wrong = [answer for answer in question.answers if not _stands(answer, question.context)]
        if not wrong:
            return question
        if self.misplaced == "error":
            raise _misplaced(question, wrong[0], place)
        if self.misplaced == "skip":
            report.note("an answer does not stand where it should, question left out", report.read)
            return None
        for _ in wrong:
            report.note("answer moved to the nearest place where it stands", report.read)
        moved = tuple(
            _moved(question, answer, place) if answer in wrong else answer
            for answer in question.answers
        )
        return replace(question, answers=moved)


def _answers(given: Any, place: Place) -> tuple[AnswerSpan, ...]:
    """A list of objects, or an object of two lists."""
    if isinstance(given, Mapping):
        texts, starts = (found(given, name, *place) for name in ("text", "answer_start"))
        must_be(texts, list, "`text`", place)
        if len(texts) != len(must_be(starts, list, "`answer_start`", place)):
            raise DataError(*place, f"has {len(texts)} answers, but {len(starts)} starts of them.")
        pairs = list(zip(texts, starts, strict=True))
    else:
        records = must_be(given, list, "`answers`", place)
        for record in records:
            must_be(record, dict, "an answer", place)
        pairs = [(found(r, "text", *place), found(r, "answer_start", *place)) for r in records]
    return tuple(_answer(text, start, place) for text, start in pairs)


def _answer(text: Any, start: Any, place: Place) -> AnswerSpan:
    if not must_be(text, str, "an answer's text", place):
        raise DataError(*place, "an answer is empty.", "A question without one has no answers: [].")
    text = text_of(*place, "text", text)
    return AnswerSpan(text, must_be(start, int, "an answer's start", place))


def _stands(answer: AnswerSpan, context: str) -> bool:
    return answer.start >= 0 and context.startswith(answer.text, answer.start)


def _nearest(answer: AnswerSpan, context: str) -> int | None:
    """Where the answer's text begins, as near to its start as it comes."""
    start = max(0, answer.start)
    after = context.find(answer.text, start)
    before = context.rfind(answer.text, 0, start + len(answer.text))
    places = [at for at in (before, after) if at >= 0]
    return min(places, key=lambda at: abs(at - start)) if places else None


def _moved(question: Question, answer: AnswerSpan, place: Place) -> AnswerSpan:
    at = _nearest(answer, question.context)
    if at is None:
        raise _misplaced(question, answer, place)
    return AnswerSpan(answer.text, at)


def _misplaced(question: Question, answer: AnswerSpan, place: Place) -> DataError:
    there = question.context[max(0, answer.start) :][: len(answer.text)]
    problem = f"question {question.id!r}: the answer {answer.text!r} should begin at character "
    problem += f"{answer.start} of the context, but there stands {there!r}."
    at = _nearest(answer, question.context)
    hint = "The context does not hold it at all: misplaced='skip' leaves such questions out."
    if at is not None:
        hint = f"It stands at {at}: misplaced='move' takes the nearest place, 'skip' leaves it out."
    return DataError(*place, problem, hint)
