"""Multiple choice: questions of which one of several answers is right. DREAM, SWAG, or your own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

from regard.data.datasets.records import Place, RecordReader, Source, json_of, must_be
from regard.data.files import ending, lines
from regard.data.readers import CsvReader, ItemReader, JsonLinesReader, found, picked, text_of
from regard.data.token_arrays import ReadReport
from regard.errors import DataError

_SWAG = ("sent1", "sent2", "ending0", "ending1", "ending2", "ending3")


@dataclass(frozen=True)
class ChoiceQuestion:
    """One of `choices` answers the `question` about the `context`: the one numbered `answer`.

    In SWAG the question is the beginning of a sentence, and the choices are ends of it.
    """

    context: str
    question: str
    choices: tuple[str, ...]
    answer: int | None = None


def read_choices(
    data: str | PathLike[str] | Iterable[Any], *, labels: bool = True
) -> RecordReader[ChoiceQuestion]:
    """The questions of a file, or of anything to loop over.

    `.json`: a file of DREAM, whose turns are joined by line breaks into the context. `.csv`: a file
    of SWAG. `.jsonl`, and items of other data: objects with `context`, `question`, `choices` and
    `answer`, which is a number from 0 or the text of the choice; either of the first two may be
    missing. Items may also be as in DREAM or SWAG. With `labels=False` answers are not read.
    """
    return RecordReader(data, partial(_read, labels=labels), "question", unit="question")


def _read(source: Source, report: ReadReport, labels: bool) -> Iterator[tuple[int, ChoiceQuestion]]:
    for place, item in _entries(source, labels):
        for choice in _choices(item, place, labels):
            report.read += 1
            yield report.read, choice


def _entries(source: Source, labels: bool) -> Iterator[tuple[Place, Any]]:
    """Dialogues or questions, with what an error calls each."""
    if isinstance(source, ItemReader):
        for number, item in source.whole():
            yield (source.file_of(0), number), item
    elif ending(source) == ".csv":
        names = (*_SWAG, "label") if labels else _SWAG
        for number, row in CsvReader(source, names, header=True).numbered():
            yield (source, number), dict(zip(names, row, strict=True))
    elif ending(source) == ".json" and _begins(source, "["):
        for i, item in enumerate(json_of(source)):
            yield (f"{source}, item {i}", None), item
    elif ending(source) in (".json", ".jsonl", ".ndjson"):
        for number, record in JsonLinesReader(source, ()).records():
            yield (source, number), record
    else:
        hint = "Name it .json (DREAM), .csv (SWAG) or .jsonl; before .gz, .bz2 or .xz too."
        raise DataError(source, None, "has an ending that tells no format of choices.", hint)


def _begins(path: str, mark: str) -> bool:
    """Whether this is the first character that is no white space."""
    first = next((line for line in lines(path) if line.strip()), "")
    return first.lstrip().startswith(mark)


def _choices(item: Any, place: Place, labels: bool) -> Iterator[ChoiceQuestion]:
    if isinstance(item, ChoiceQuestion):
        yield item
    elif isinstance(item, Mapping):
        yield _swag(item, place, labels) if "ending0" in item else _plain(item, place, labels)
    else:
        yield from _dream(item, place, labels)


def _plain(record: Mapping[str, Any], place: Place, labels: bool) -> ChoiceQuestion:
    context, question = (text_of(*place, n, record.get(n, "")) for n in ("context", "question"))
    if not context and not question:
        raise DataError(*place, "has neither a `context` nor a `question`.")
    offered = _offered(found(record, "choices", *place), place)
    return ChoiceQuestion(
        context, question, offered, _answer(record, "answer", offered, place, labels)
    )


def _swag(record: Mapping[str, Any], place: Place, labels: bool) -> ChoiceQuestion:
    context, start, *ends = picked(record, _SWAG, *place)
    label = record.get("label")
    if isinstance(label, str) and label.isdecimal() and len(label) < 10:
        record = {**record, "label": int(label)}
    offered = tuple(ends)
    return ChoiceQuestion(context, start, offered, _answer(record, "label", offered, place, labels))


def _dream(item: Any, place: Place, labels: bool) -> Iterator[ChoiceQuestion]:
    """[turns, questions, id]"""
    if not isinstance(item, list | tuple) or len(item) != 3:
        raise DataError(*place, "must be an object, or as in DREAM a list: turns, questions, id.")
    turns, questions, id = item
    place = (f"{place[0]} ({id})", place[1])
    spoken = must_be(turns, list, "the turns", place)
    context = "\n".join(text_of(*place, i, turn) for i, turn in enumerate(spoken))
    for record in must_be(questions, list, "the questions", place):
        (question,) = picked(must_be(record, dict, "a question", place), ("question",), *place)
        offered = _offered(found(record, "choice", *place), place)
        answer = _answer(record, "answer", offered, place, labels)
        yield ChoiceQuestion(context, question, offered, answer)


def _offered(given: Any, place: Place) -> tuple[str, ...]:
    offered = must_be(given, list, "the choices", place)
    if len(offered) < 2:
        raise DataError(*place, f"must have at least two choices, but has {len(offered)}.")
    return tuple(text_of(*place, i, choice) for i, choice in enumerate(offered))


def _answer(
    record: Mapping[str, Any], name: str, offered: tuple[str, ...], place: Place, labels: bool
) -> int | None:
    """The number of the right choice, given as a number or as its text."""
    if not labels:
        return None
    if record.get(name) is None:
        hint = "To read questions alone, give labels=False."
        raise DataError(*place, f"has no `{name}`.", hint)
    given = record[name]
    if isinstance(given, str):
        if offered.count(given) != 1:
            times = "more than once" if given in offered else "not"
            listed = ", ".join(map(repr, offered))
            raise DataError(*place, f"the answer {given!r} is {times} among the choices: {listed}.")
        return offered.index(given)
    number = must_be(given, int, f"`{name}`", place)
    if not 0 <= number < len(offered):
        problem = f"the answer must be from 0 to {len(offered) - 1}, but is {number}."
        hint = "If answers are hidden, read questions alone with labels=False." * (number == -1)
        raise DataError(*place, problem, hint)
    return number
