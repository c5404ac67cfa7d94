"""Dialogues: turns of speakers, one after the other. DREAM, or your own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from regard.data.datasets.records import RecordReader, Source, items_of, must_be, read_json_file
from regard.data.files import ending
from regard.data.readers import Location, Row, RowReader, text_of
from regard.data.token_arrays import ReadReport
from regard.errors import ConfigError, DataError

_NAMES = ("speaker", "role")
_TEXTS = ("text", "content")


@dataclass(frozen=True)
class Turns:
    """turns: what was said, each behind the name of its speaker, where that is known: "M: Hi."."""

    turns: tuple[str, ...]


def read_dialogues(data: str | PathLike[str] | Iterable[Any]) -> RecordReader[Turns]:
    """The dialogues of a file, or of anything to loop over.

    data: a `.json` file of DREAM, whose questions are left out, or with a list of dialogues; a
        `.jsonl` file with a dialogue on each line; or dialogues to loop over. A dialogue is a list
        of turns, or an object with `turns`. A turn is a text, or an object with its `text` (or
        `content`) and the `speaker` (or `role`), if there is one.

    Raises:
        DataError: when it is read, for an unknown format or a malformed dialogue.
    """
    return RecordReader(data, _read, "dialogue", unit="dialogue")


def _read(source: Source, report: ReadReport) -> Iterator[tuple[int, Turns]]:
    for number, (location, item) in enumerate(items_of(source) or _whole(str(source)), 1):
        report.read += 1
        yield number, _dialogue(item, location)


def _whole(path: str) -> Iterator[tuple[Location, Any]]:
    """The dialogues of a JSON file."""
    if ending(path) != ".json":
        hint = "Name it .json (a list of dialogues, or DREAM) or .jsonl (a dialogue a line)."
        raise DataError(path, None, "has an ending that tells no format of dialogues.", hint)
    for i, item in enumerate(must_be(read_json_file(path), list, "the file", (path, None))):
        yield (f"{path}, item {i}", None), item


def _dialogue(item: object, location: Location) -> Turns:
    if isinstance(item, Turns):
        return item
    if isinstance(item, Mapping):
        if "turns" not in item:
            raise DataError(*location, "has no `turns`.", "A dialogue is a list of turns.")
        item = item["turns"]
    elif isinstance(item, list | tuple) and len(item) == 3 and isinstance(item[0], list):
        item = item[0]  # DREAM: turns, questions, id
    if isinstance(item, tuple):
        item = list(item)
    turns = must_be(item, list, "a dialogue", location)
    if not turns:
        raise DataError(*location, "has no turns.")
    return Turns(tuple(_turn(i, turn, location) for i, turn in enumerate(turns)))


def _turn(number: int, turn: object, location: Location) -> str:
    """A turn as a text, behind the name of its speaker."""
    speaker = ""
    if isinstance(turn, Mapping):
        present = [name for name in _TEXTS if name in turn]
        if not present:
            problem = f"turn {number} has neither a `text` nor a `content`."
            raise DataError(*location, problem)
        speakers = [turn[name] for name in _NAMES if turn.get(name) is not None]
        speaker = f"{text_of(number, speakers[0], location).strip()}: " if speakers else ""
        turn = turn[present[0]]
    said = " ".join(text_of(number, turn, location).split())
    if not said:
        raise DataError(*location, f"turn {number} is empty.", "Leave it out of the dialogue.")
    return speaker + said


class Replies(RowReader):
    """Each turn of some dialogues as a reply, with what was said before it: (history, reply).

    The first turn of a dialogue has an empty history.

    turns: of a history, at most so many, the last ones; None: all.

    Raises:
        ConfigError: `turns` is negative.
    """

    def __init__(self, dialogues: RecordReader[Turns], turns: int | None = None):
        if turns is not None and turns < 0:
            raise ConfigError(f"`history` must be at least 0, but is {turns}.")
        self.dialogues, self.turns = dialogues, turns

    def file_of(self, field: int) -> str:
        return self.dialogues.name

    def numbered(self) -> Iterator[tuple[int, Row]]:
        """The number is that of the dialogue."""
        for number, dialogue in self.dialogues.numbered():
            for at, reply in enumerate(dialogue.turns):
                first = 0 if self.turns is None else max(0, at - self.turns)
                yield number, (" ".join(dialogue.turns[first:at]), reply)
