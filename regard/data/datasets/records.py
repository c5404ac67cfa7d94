"""Datasets of records: questions with answers, choices, dialogues, minimal pairs.

Questions about contexts with their answers as spans: SQuAD 1.1, 2.0, and all in that format.

A file is JSON: articles, of paragraphs, of questions. It is read into memory as a whole.

Multiple choice: questions of which one of several answers is right. DREAM, SWAG, or your own.

Dialogues: turns of speakers, one after the other. DREAM, or your own.

Minimal pairs, of which one sentence is grammatical: BLiMP (Warstadt et al. 2020), or others.
"""

import io
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from os import PathLike
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple, TypeVar, get_args
from zipfile import BadZipFile, ZipFile

from regard.data.files import check_file, ending, line_blocks, open_bytes, split_member
from regard.data.in_memory import Items, is_path
from regard.data.readers import (
    Location,
    Numbered,
    ReadReport,
    RowReader,
    field_value,
    json_value,
    open_table,
    text_of,
)
from regard.errors import ConfigError, DataError, check_at_least

T = TypeVar("T")
Source = str | Items
LARGEST = 1 << 29  # bytes of a JSON file that is held in memory as a whole
Read = Callable[[Source, ReadReport], Numbered]


def record_reader(
    data: str | PathLike[str] | Iterable[Any], read: Read, what: str, unit: str = "line"
) -> RowReader:
    """Records of one kind from a file or from anything one can loop over.

    data: the path of a file, or something to loop over.
    read: makes a pass: gives numbered records, and counts in the report how many it reads.
    what: the name of a record, for messages.
    unit: what the record's number counts: a "line", or a "question".
    """
    source: Source = str(data) if is_path(data) else Items(data)
    report = ReadReport((source if isinstance(source, str) else source.name,), unit=unit)
    return RowReader(report.files[0], partial(read, source, report), what=what, report=report)


def items_of(source: Source) -> Iterator[tuple[Location, Any]] | None:
    """The given items, or the objects of a .jsonl file; None for a file of another format."""
    if isinstance(source, Items):
        return (((source.name, number), item) for number, item in source())
    if ending(source) not in (".jsonl", ".ndjson"):
        return None
    table = open_table(source)
    return (((table.name, number), row) for number, row in table.numbered())


def read_json_file(path: str | Path) -> Any:
    """The value of a JSON file, which is read into memory as a whole.

    Raises:
        DataError: it is larger than `LARGEST`, or is not JSON; the message names the line.
    """
    with open_bytes(path) as stream:
        data = stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        problem = f"has more than {LARGEST:,} bytes, and would be in memory as a whole."
        raise DataError(path, None, problem, "Split it, or write it as .jsonl, an object a line.")
    text = "".join(chain.from_iterable(line_blocks(io.BytesIO(data), path, LARGEST)))
    return json_value(text, path)


def items_of_list(path: str) -> Iterator[tuple[Location, Any]]:
    """The items of a JSON file that is a list, with their places.

    Raises:
        DataError: its name does not end in .json, or it is no list.
    """
    if ending(path) != ".json":
        hint = "Name it .json (a list) or .jsonl (an object a line)."
        raise DataError(path, None, "has an ending that tells no format.", hint)
    for i, item in enumerate(must_be(read_json_file(path), list, "the file", (path, None))):
        yield (f"{path}, item {i}", None), item


def must_be(value: object, kind: type[T], what: str, location: Location) -> T:
    """The value, if it is of this kind.

    Raises:
        DataError: it is not; the message names its kind.
    """
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    problem = f"{what} must be {_KINDS[kind]}, but is {_KINDS.get(type(value), 'something else')}."
    raise DataError(*location, problem)


_KINDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "missing (null)",
}


# -------------------------------------------------------------------------------------------- SQuAD


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
) -> RowReader:
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
    if on_misaligned not in get_args(OnMisaligned):
        raise ConfigError(f"`on_misaligned` must be error, skip or fix, but is {on_misaligned!r}.")
    reader = partial(_squad_questions, on_misaligned=on_misaligned)
    return record_reader(data, reader, "question", "question")


def _squad_questions(source: Source, report: ReadReport, on_misaligned: OnMisaligned) -> Numbered:
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
    id, context, question = (
        text_of(name, field_value(record, name, location), location)
        for name in ("id", "context", "question")
    )
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


# ---------------------------------------------------------------------------------- multiple choice


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


def read_choices(data: str | PathLike[str] | Iterable[Any], *, labels: bool = True) -> RowReader:
    """The questions of a file, or of anything to loop over.

    data: a `.json` file of DREAM, whose turns are joined by line breaks into the context; a `.csv`
        file of SWAG; a `.jsonl` file of objects with `context`, `question`, `choices` and `answer`,
        which is a number from 0 or the text of the choice, and of the first two one may be missing;
        or such objects, or items of DREAM or SWAG, to loop over
    labels: whether answers are read

    Raises:
        DataError: when it is read, for an unknown format or a malformed question.
    """
    return record_reader(data, partial(_choice_questions, labels=labels), "question", "question")


def _choice_questions(source: Source, report: ReadReport, labels: bool) -> Numbered:
    for location, item in items_of(source) or _entries(str(source)):
        for question in _questions_of_item(item, location, labels):
            report.read += 1
            yield report.read, question


def _entries(path: str) -> Iterator[tuple[Location, Any]]:
    """The dialogues or questions of a file, with their locations."""
    if ending(path) == ".csv" or ending(path) == ".json" and not _is_list(path):
        for number, record in open_table(path).numbered():
            yield (path, number), record
    else:
        yield from items_of_list(path)


def _is_list(path: str) -> bool:
    """Whether a JSON file begins as a list does, which may be one line of any length."""
    with open_bytes(path) as stream:
        start = stream.read(MOST_BLANK).removeprefix(BOM_UTF8)
    return start.lstrip().startswith(b"[")


def _questions_of_item(item: object, location: Location, labels: bool) -> Iterator[ChoiceQuestion]:
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
    context, start, *ends = (
        text_of(name, field_value(record, name, location), location) for name in _SWAG
    )
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
        must_be(record, dict, "a question", location)
        question = text_of("question", field_value(record, "question", location), location)
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


# ---------------------------------------------------------------------------------------- dialogues


_SPEAKERS = ("speaker", "role")
_TEXTS = ("text", "content")


@dataclass(frozen=True)
class Turns:
    """turns: what was said, each behind the name of its speaker, where that is known: "M: Hi."."""

    turns: tuple[str, ...]


def read_dialogues(data: str | PathLike[str] | Iterable[Any]) -> RowReader:
    """The dialogues of a file, or of anything to loop over.

    data: a `.json` file of DREAM, whose questions are left out, or with a list of dialogues; a
        `.jsonl` file with a dialogue on each line; or dialogues to loop over. A dialogue is a list
        of turns, or an object with `turns`. A turn is a text, or an object with its `text` (or
        `content`) and the `speaker` (or `role`), if there is one.

    Raises:
        DataError: when it is read, for an unknown format or a malformed dialogue.
    """
    return record_reader(data, _dialogues, "dialogue", "dialogue")


def _dialogues(source: Source, report: ReadReport) -> Numbered:
    items = items_of(source) or items_of_list(str(source))
    for number, (location, item) in enumerate(items, 1):
        report.read += 1
        yield number, _dialogue(item, location)


def _dialogue(item: object, location: Location) -> Turns:
    if isinstance(item, Turns):
        return item
    if isinstance(item, Mapping):
        item = field_value(item, "turns", location)
    elif isinstance(item, list | tuple) and len(item) == 3 and isinstance(item[0], list):
        item = item[0]  # DREAM: turns, questions, id
    turns = must_be(list(item) if isinstance(item, tuple) else item, list, "a dialogue", location)
    if not turns:
        raise DataError(*location, "has no turns.")
    return Turns(tuple(_turn(i, turn, location) for i, turn in enumerate(turns)))


def _turn(number: int, turn: object, location: Location) -> str:
    """A turn as a text, behind the name of its speaker."""
    speaker = ""
    if isinstance(turn, Mapping):
        speakers = [turn[name] for name in _SPEAKERS if turn.get(name) is not None]
        speaker = f"{text_of(number, speakers[0], location).strip()}: " if speakers else ""
        name = next((name for name in _TEXTS if name in turn), _TEXTS[0])
        turn = field_value(turn, name, location)
    text = " ".join(text_of(number, turn, location).split())
    if not text:
        raise DataError(*location, f"turn {number} is empty.", "Leave it out of the dialogue.")
    return speaker + text


def replies(dialogues: RowReader, turns: int | None = None) -> RowReader:
    """Each turn of some dialogues as a reply, with what was said before it: rows with the columns
    `source` and `target`, whose number is that of the dialogue.

    The first turn of a dialogue has an empty history.

    turns: of a history, at most so many, the last ones; None: all.

    Raises:
        ConfigError: `turns` is negative.
    """
    check_at_least(0, history=turns)

    def change(numbered: Numbered) -> Numbered:
        for number, dialogue in numbered:
            for at, reply in enumerate(dialogue.turns):
                first = 0 if turns is None else max(0, at - turns)
                yield number, {"source": " ".join(dialogue.turns[first:at]), "target": reply}

    return dialogues.mapped(change)


# ------------------------------------------------------------------------------------ minimal pairs


_FIELDS = (("sentence_good", "good"), ("sentence_bad", "bad"))
_ENDINGS = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class MinimalPair:
    """good: the grammatical sentence.  bad: the other one.  name: of the set that has this pair.
    phenomenon: of which several sets are examples; "" where it is not named.
    """

    good: str
    bad: str
    name: str
    phenomenon: str = ""


def read_minimal_pairs(
    data: str | PathLike[str] | Iterable[Any], *, pairs_per_set: int | None = None
) -> list[MinimalPair]:
    """The pairs of a file, of all `.jsonl` files of a folder or of a zip archive, or of anything to
    loop over.

    Args:
        data: each line or item is an object with `sentence_good` and `sentence_bad`, and the name
            of its set as `UID` and of its phenomenon as `linguistics_term`, as BLiMP has them; or
            with `good` and `bad`. Without `UID`, the set is the file.
        pairs_per_set: the first so many pairs of each file; None: all.

    Raises:
        ConfigError: `pairs_per_set` is below 1.
        DataError: a file cannot be read, or a pair is malformed; there is no pair.
    """
    check_at_least(1, pairs_per_set=pairs_per_set)
    sources = _files(data) if isinstance(data, str | PathLike) else [data]
    readers = (record_reader(source, _minimal_pairs, "minimal pair") for source in sources)
    return [pair for reader in readers for pair in islice(reader, pairs_per_set)]


def _files(path: str | PathLike[str]) -> list[str]:
    """The file itself, or the .jsonl files of a folder or a zip archive by name."""
    path = Path(path)
    if path.is_dir():
        files = [str(file) for file in path.rglob("*") if file.suffix in _ENDINGS]
    elif path.suffix.lower() == ".zip":
        files = [f"{path}!{member}" for member in _members(path)]
    else:
        return [str(path)]
    if not files:
        raise DataError(path, None, "has no .jsonl file.", "Each line must be a minimal pair.")
    return sorted(files)


def _members(path: Path) -> list[str]:
    """The .jsonl files of an archive, without those that macOS adds to it."""
    check_file(path)
    try:
        names = ZipFile(path).namelist()
    except BadZipFile as error:
        raise DataError(path, None, f"is no zip archive: {error}.") from None
    return [n for n in names if PurePath(n).suffix in _ENDINGS and "__MACOSX" not in n]


def _minimal_pairs(source: Source, report: ReadReport) -> Numbered:
    items = items_of(source)
    if items is None:
        raise ConfigError(f"{source} must end in .jsonl, .ndjson or .zip, or be a folder of such.")
    for number, (location, item) in enumerate(items, 1):
        report.read += 1
        yield number, _pair(item, location)


def _pair(item: object, location: Location) -> MinimalPair:
    if isinstance(item, MinimalPair):
        return item
    record = must_be(item, dict, "a minimal pair", location)
    sentences = []
    for names in _FIELDS:
        value = field_value(record, next((n for n in names if n in record), names[0]), location)
        if not must_be(value, str, names[0], location).strip():
            raise DataError(*location, f"{names[0]} must have a word, but is {value!r}.")
        sentences.append(value)
    file, member = split_member(location[0])
    good, bad = sentences
    name = str(record.get("UID") or PurePath(member or file).stem)
    return MinimalPair(good, bad, name, str(record.get("linguistics_term", "")))
