"""Prompts from the rows of a table: a template with fields in braces, and examples before it.

PromptTemplate("{sentence}\\nSentiment:", answer="label", choices={"0": "bad", "1": "good"})

it is dull                            an example of the pool, with its answer
Sentiment: bad

a fine film                           the row
Sentiment:                            good, or bad?
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from string import Formatter
from typing import Any

from regard.data.readers import Location, field_value, open_table, text_of
from regard.errors import ConfigError, DataError, check_at_least, shown

NUMBERED = "Give the number of the right choice, from 0, as a number, and choices as texts."
Rows = str | PathLike[str] | Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class PromptQuestion:
    """A row as a prompt, its choices, none where the answer is generated, and the right answer."""

    prompt: str
    choices: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class PromptTemplate:
    """How rows become prompts.

    template: names fields in braces, also `{question.stem}`; `{{` is a brace.
    answer: the field with the right answer: a label of `choices`, the number of a choice from 0, or
        a choice itself.
    choices: the texts of all labels, which may be numbers or truth values as in the rows; or the
        field with the list of the choices of each row; None: the answer is generated, and the field
        `answer` has its text.
    separator: between examples.

    Raises:
        ConfigError: the template names no field, or cannot be read; there are no two choices.
    """

    template: str
    answer: str
    choices: Mapping[Any, str] | str | None = None
    separator: str = "\n\n"

    def __post_init__(self) -> None:
        if not self.fields:
            raise ConfigError(
                f"The template {self.template!r} names no field. Write fields in braces, such as "
                "{sentence}."
            )
        if isinstance(self.choices, Mapping):
            self._check_texts(self.choices)
        elif not isinstance(self.choices, str | None):
            raise ConfigError(
                "`choices` must be labels with their texts, or the name of the field with the "
                f"choices of a row, but is {shown(self.choices)}. Write labels with texts as "
                '{"0": "bad", "1": "good"}.'
            )

    @staticmethod
    def _check_texts(choices: Mapping[Any, Any]) -> None:
        """Check that labels have texts of their own.

        Raises:
            ConfigError: there are not two labels, or a label has no text, an empty one or that of
                another label.
        """
        if len(choices) < 2:
            raise ConfigError("`choices` must be at least two labels with their texts.")
        labels: dict[str, Any] = {}  # by their texts
        for label, text in choices.items():
            if not isinstance(text, str) or not text.strip():
                raise ConfigError(
                    f"`choices` must be labels with their texts, but the choice of the label "
                    f"{shown(label)} is {shown(text)}. Write a text, such as "
                    '{"0": "bad", "1": "good"}.'
                )
            if text in labels:
                raise ConfigError(
                    f"`choices` has the text {shown(text)} for the labels {shown(labels[text])} "
                    f"and {shown(label)}. Write another text for one of them."
                )
            labels[text] = label

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The fields that the template names."""
        try:
            parts = [*Formatter().parse(self.template)]
        except ValueError as error:
            problem = f"The template {self.template!r} cannot be read: {error}."
            raise ConfigError(f"{problem} Write a brace as {{{{ or }}}}.") from None
        for _, name, options, conversion in parts:
            if name is not None and (not name or options or conversion):
                raise ConfigError(
                    f"The template {self.template!r} must have names alone in its braces."
                )
        return tuple(name for _, name, _, _ in parts if name is not None)

    @property
    def space(self) -> str:
        """What is between a prompt and its answer: a space, if the prompt does not end in one."""
        return "" if self.template[-1:].isspace() else " "

    def questions(self, rows: Rows) -> list[PromptQuestion]:
        """The rows of a CSV, TSV, JSONL or Parquet file, or of anything to loop over, as questions.

        Raises:
            DataError: a row lacks a field, or its answer is none of its choices; there is no row.
        """
        located: list[tuple[Location, Mapping[str, Any]]]
        if isinstance(rows, str | PathLike):
            file = open_table(rows)
            located = [((str(rows), number), row) for number, row in file.records()]
        else:
            located = [_located(row, ("rows", number)) for number, row in enumerate(rows, 1)]
        if not located:
            raise DataError("rows", None, "are none.")
        return [self.question(row, location) for location, row in located]

    def question(self, row: Mapping[str, Any], location: Location) -> PromptQuestion:
        """One row; see `questions`."""
        values = {name: _text(row, name, location) for name in self.fields}
        prompt = "".join(
            literal + ("" if name is None else values[name])
            for literal, name, _, _ in Formatter().parse(self.template)
        )
        answer = _text(row, self.answer, location)
        if self.choices is None:
            return PromptQuestion(prompt, (), answer)
        if isinstance(self.choices, Mapping):
            labels, choices = tuple(map(_shown, self.choices)), tuple(self.choices.values())
        else:
            choices = _list(field_value(row, self.choices, location), self.choices, location)
            labels = tuple(map(str, range(len(choices))))
            self._check_unambiguous(row, choices, answer, location)
        if any(not choice.strip() for choice in choices):
            raise DataError(*location, f"has an empty choice: {', '.join(map(repr, choices))}.")
        choice_of = dict(zip(labels, choices, strict=True))
        right = choice_of.get(answer, answer)
        if right not in choices:
            names = ", ".join(map(repr, labels if isinstance(self.choices, Mapping) else choices))
            raise DataError(*location, f"has the answer {answer!r}, but the choices are {names}.")
        return PromptQuestion(prompt, choices, right)

    def _check_unambiguous(
        self, row: Mapping[str, Any], choices: Sequence[str], answer: str, location: Location
    ) -> None:
        """Check that an answer is not the number of one choice and the text of another.

        Raises:
            DataError: it is, and its type does not say which is meant.
        """
        given = [field_value(row, name, location) for name in (self.answer, str(self.choices))]
        if isinstance(given[0], int) and all(isinstance(choice, str) for choice in given[1]):
            return
        numbered = dict(zip(map(str, range(len(choices))), choices, strict=True)).get(answer)
        if answer in choices and numbered not in (None, answer):
            problem = f"has the answer {answer!r}, the number of the choice {numbered!r} and the"
            raise DataError(*location, f"{problem} text of another.", NUMBERED)

    def solved(self, question: PromptQuestion) -> str:
        """The question with its answer, and what separates it from the next."""
        return f"{question.prompt}{self.space}{question.answer}{self.separator}"


def drawn_examples(
    question: PromptQuestion, number: int, pool: Sequence[PromptQuestion], shots: int, seed: int
) -> list[PromptQuestion]:
    """`shots` questions of the pool, others for each question, and never the question itself.

    Args:
        number: of the question.

    Raises:
        ConfigError: the pool has too few.
    """
    check_at_least(0, shots=shots)
    draw, seen = random.Random(f"{seed}:{number}"), set[int]()
    chosen: list[PromptQuestion] = []
    while len(chosen) < shots:
        if len(seen) == len(pool):
            raise ConfigError(
                f"`shots` is {shots}, but the pool has {len(chosen)} examples other than question "
                f"{number + 1}. Give more, or ask for fewer."
            )
        at = draw.randrange(len(pool))
        if at not in seen and pool[at] != question:
            chosen.append(pool[at])
        seen.add(at)
    return chosen


def _located(row: object, location: Location) -> tuple[Location, dict[str, Any]]:
    if not isinstance(row, Mapping):
        raise DataError(*location, f"must be a mapping, but is a {type(row).__name__}.")
    return location, dict(row)


def _text(row: Mapping[str, Any], name: str, location: Location) -> str:
    """A field as text; of true and false their words."""
    value = field_value(row, name, location)
    return _shown(value) if isinstance(value, bool) else text_of(name, value, location)


def _shown(label: object) -> str:
    """A label as text: JSON's words for true and false."""
    return str(label).lower() if isinstance(label, bool) else str(label)


def _list(value: Any, name: str, location: Location) -> tuple[str, ...]:
    """A field as a list of two texts or more."""
    if not isinstance(value, list | tuple) or len(value) < 2:
        raise DataError(*location, f"field {name!r} must be a list of at least two choices.")
    return tuple(text_of(name, item, location) for item in value)
