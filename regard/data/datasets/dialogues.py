"""Dialogues: turns of speakers, one after the other. DREAM, or your own."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from regard.data.datasets.records import RecordReader, Source, items_of, items_of_list, must_be
from regard.data.readers import Location, Row, RowReader, field_value, text_of
from regard.data.token_arrays import ReadReport
from regard.errors import DataError, check_at_least

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
        speakers = [turn[name] for name in _NAMES if turn.get(name) is not None]
        speaker = f"{text_of(number, speakers[0], location).strip()}: " if speakers else ""
        name = next((name for name in _TEXTS if name in turn), _TEXTS[0])
        turn = field_value(turn, name, location)
    text = " ".join(text_of(number, turn, location).split())
    if not text:
        raise DataError(*location, f"turn {number} is empty.", "Leave it out of the dialogue.")
    return speaker + text


class Replies(RowReader):
    """Each turn of some dialogues as a reply, with what was said before it: (history, reply).

    The first turn of a dialogue has an empty history.

    turns: of a history, at most so many, the last ones; None: all.

    Raises:
        ConfigError: `turns` is negative.
    """

    def __init__(self, dialogues: RecordReader[Turns], turns: int | None = None):
        check_at_least(0, history=turns)
        self.dialogues, self.turns = dialogues, turns

    def file_of(self, field: int) -> str:
        return self.dialogues.name

    def numbered(self) -> Iterator[tuple[int, Row]]:
        """The number is that of the dialogue."""
        for number, dialogue in self.dialogues.numbered():
            for at, reply in enumerate(dialogue.turns):
                first = 0 if self.turns is None else max(0, at - self.turns)
                yield number, (" ".join(dialogue.turns[first:at]), reply)
