"""Multiple choice: questions of which one of several answers is right. DREAM, SWAG, or your own."""

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

from regard.data.datasets.records import RecordReader, Source, items_of, items_of_list, must_be
from regard.data.files import ending, open_bytes
from regard.data.readers import Location, field_value, open_table, text_of, texts_of
from regard.data.token_arrays import ReadReport
from regard.errors import DataError

MOST_BLANK = 1 << 16  # bytes of white space before the first value of a JSON file
_SWAG = ("sent1", "sent2", "ending0", "ending1", "ending2", "ending3")


@dataclass(frozen=True)
class ChoiceQuestion:
    """One of `choices` answers the `question` about the `context`: number `answer`, from 0.

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

    data: a `.json` file of DREAM, whose turns are joined by line breaks into the context; a `.csv`
        file of SWAG; a `.jsonl` file of objects with `context`, `question`, `choices` and `answer`,
        which is a number from 0 or the text of the choice, and of the first two one may be missing;
        or such objects, or items of DREAM or SWAG, to loop over
    labels: whether answers are read

    Raises:
        DataError: when it is read, for an unknown format or a malformed question.
    """
    return RecordReader(data, partial(_read, labels=labels), "question", unit="question")


def _read(source: Source, report: ReadReport, labels: bool) -> Iterator[tuple[int, ChoiceQuestion]]:
    for location, item in items_of(source) or _entries(str(source)):
        for question in _questions(item, location, labels):
            report.read += 1
            yield report.read, question


def _entries(path: str) -> Iterator[tuple[Location, Any]]:
    """The dialogues or questions of a file, with their locations."""
    if ending(path) == ".csv" or ending(path) == ".json" and not _is_list(path):
        for number, record in open_table(path).records():
            yield (path, number), record
    else:
        yield from items_of_list(path)


def _is_list(path: str) -> bool:
    """Whether a JSON file begins as a list does, which may be one line of any length."""
    with open_bytes(path) as stream:
        start = stream.read(MOST_BLANK).removeprefix(BOM_UTF8)
    return start.lstrip().startswith(b"[")


def _questions(item: object, location: Location, labels: bool) -> Iterator[ChoiceQuestion]:
    if isinstance(item, ChoiceQuestion):
        yield item
    elif isinstance(item, Mapping):
        make_question = _swag if "ending0" in item else _plain
        yield make_question(item, location, labels)
    else:
        yield from _dream(item, location, labels)


def _plain(record: Mapping[str, Any], location: Location, labels: bool) -> ChoiceQuestion:
    context, question = (
        text_of(name, record.get(name, ""), location) for name in ("context", "question")
    )
    if not context and not question:
        raise DataError(*location, "has neither a `context` nor a `question`.")
    choices = _choices(field_value(record, "choices", location), location)
    answer = _answer(record, "answer", choices, location) if labels else None
    return ChoiceQuestion(context, question, choices, answer)


def _swag(record: Mapping[str, Any], location: Location, labels: bool) -> ChoiceQuestion:
    context, start, *ends = texts_of(record, _SWAG, location)
    label = record.get("label")
    if isinstance(label, str) and label.isdecimal() and len(label) < 10:
        record = {**record, "label": int(label)}
    answer = _answer(record, "label", tuple(ends), location) if labels else None
    return ChoiceQuestion(context, start, tuple(ends), answer)


def _dream(item: object, location: Location, labels: bool) -> Iterator[ChoiceQuestion]:
    """The questions of a dialogue: [turns, questions, id]."""
    if not isinstance(item, list | tuple) or len(item) != 3:
        problem = "must be an object, or as in DREAM a list: turns, questions, id."
        raise DataError(*location, problem)
    turns, questions, id = item
    location = (f"{location[0]} ({id})", location[1])
    spoken = must_be(turns, list, "the turns", location)
    context = "\n".join(text_of(i, turn, location) for i, turn in enumerate(spoken))
    for record in must_be(questions, list, "the questions", location):
        (question,) = texts_of(
            must_be(record, dict, "a question", location), ("question",), location
        )
        choices = _choices(field_value(record, "choice", location), location)
        answer = _answer(record, "answer", choices, location) if labels else None
        yield ChoiceQuestion(context, question, choices, answer)


def _choices(value: object, location: Location) -> tuple[str, ...]:
    choices = must_be(value, list, "the choices", location)
    if len(choices) < 2:
        raise DataError(*location, f"must have at least two choices, but has {len(choices)}.")
    return tuple(text_of(i, choice, location) for i, choice in enumerate(choices))


def _answer(
    record: Mapping[str, Any], name: str, choices: tuple[str, ...], location: Location
) -> int:
    """The number of the right choice, given as a number or as its text."""
    answer = record.get(name)
    if isinstance(answer, str) and choices.count(answer) == 1:
        return choices.index(answer)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return answer
    problem = f"`{name}` must be a number from 0 to {len(choices) - 1} or the text of one of the "
    problem += f"choices {', '.join(map(repr, choices))}, but is {answer!r}."
    raise DataError(*location, problem)
