"""Examples of lectures as pages, each with a picture that is computed from tensors.

lesson.py        what a lesson is
prefix_table.py  a language model that is a table, for lessons about searching
NAME.py          lessons, and functions from their numbers to their pictures
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from regard.serving.problems import Problem
from regard.serving.ui.lessons import attention, decoding, layers, texts, trained
from regard.serving.ui.lessons.lesson import Lesson
from regard.serving.ui.pictures import plain_picture

LESSONS: dict[str, Lesson] = {
    one.name: one
    for one in (
        *texts.LESSONS,
        *layers.LESSONS,
        *attention.LESSONS,
        *decoding.LESSONS,
        *trained.LESSONS,
    )
}


def listed() -> list[dict[str, str]]:
    """The names and titles of all lessons, in the order in which they are shown."""
    return [{"name": one.name, "title": one.title} for one in LESSONS.values()]


def lesson(name: str, numbers: Mapping[str, float]) -> dict[str, Any]:
    """A lesson with its picture.

    Args:
        numbers: values of its controls.

    Raises:
        Problem: 404 where there is no such lesson.
        ConfigError: there is no such control, or a value is out of range.
    """
    if name not in LESSONS:
        message = f"There is no lesson {name!r:.80}. There are: {', '.join(LESSONS)}."
        raise Problem(404, message, "no_such_lesson", "name")
    values = LESSONS[name].values_of(numbers)
    with _finding:
        drawn = _drawn(name, tuple(values.items()))
    return {**LESSONS[name].values(), "numbers": values, "picture": drawn.picture()}


_finding, _drawing = threading.Lock(), threading.Lock()


@dataclass
class _DrawnOnce:
    """A picture for a class that opens it at once: the first request draws it, the others wait.

    One picture is drawn at a time, since some set the seed of the process meanwhile; those that
    have been drawn wait for none.
    """

    lesson: Lesson
    values: dict[str, float]
    plain: dict[str, Any] | None = None

    def picture(self) -> dict[str, Any]:
        if self.plain is None:
            with _drawing:
                self.plain = self.plain or plain_picture(self.lesson.draw(**self.values))
        return self.plain


@lru_cache(maxsize=256)
def _drawn(name: str, values: tuple[tuple[str, float], ...]) -> _DrawnOnce:
    return _DrawnOnce(LESSONS[name], dict(values))
