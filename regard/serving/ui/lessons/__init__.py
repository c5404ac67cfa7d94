"""Examples of lectures as pages, each with a picture that is computed from tensors.

NAME.md        a lesson: its controls and links in TOML, then its text and questions
functions.py   from the numbers of a lesson to its picture
"""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from regard.errors import ConfigError, shown
from regard.serving.problems import Problem
from regard.serving.ui.lessons import functions
from regard.serving.ui.pictures import plain_picture
from regard.suggest import nearest
from regard.visual.picture import Picture

ORDER = (
    "subword-merges longest-match segmentations bert-inputs positions cells self-attention masks "
    "sparse-attention next-word parses"
).split()


@dataclass(frozen=True)
class Control:
    """A number that a reader may change.

    name: of the argument of the lesson's `draw`.
    label: what the page calls it.
    default, low, high, step: of its values; whole steps make whole numbers.
    """

    name: str
    label: str
    default: float
    low: float
    high: float
    step: float = 1.0

    def value_of(self, given: float) -> float | int:
        """A value that was given.

        Raises:
            ConfigError: it is out of range, or not whole where it must be.
        """
        whole = self.step % 1 == 0
        if not self.low <= given <= self.high or (whole and given % 1):
            kind = "a whole number" if whole else "a number"
            raise ConfigError(
                f"`{self.name}` must be {kind} from {self.low:g} to {self.high:g}, but is "
                f"{shown(given)}."
            )
        return int(given) if whole else float(given)


@dataclass(frozen=True)
class Link:
    """A view that shows the same of a model that is served.

    route: that a model must have.  parameters: of the view's address, besides the model.
    """

    view: str
    label: str
    route: str
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Lesson:
    """One page.

    name: in its address.
    text: paragraphs; one that begins with two spaces is a formula.
    draw: the picture, by the values of the controls.
    tasks: what to try, or to ask oneself.
    """

    name: str
    title: str
    text: tuple[str, ...]
    draw: Callable[..., Picture]
    controls: tuple[Control, ...] = ()
    tasks: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()

    @classmethod
    def read(cls, name: str) -> Self:
        """The lesson in NAME.md."""
        path = Path(__file__).with_name(f"{name}.md")
        _, facts, page = path.read_text(encoding="utf-8").split("+++\n")
        values = tomllib.loads(facts)
        text, _, questions = page.partition("## Questions")
        return cls(
            name,
            values["title"],
            tuple(f"  {p.strip()}" if p.startswith("    ") else p for p in _paragraphs(text)),
            getattr(functions, values["draw"]),
            tuple(Control(*row) for row in values.get("controls", ())),
            tuple(" ".join(q.split()) for q in f"\n{questions.strip()}".split("\n- ")[1:]),
            tuple(Link(*row) for row in values.get("links", ())),
        )

    def values_of(self, given: Mapping[str, float]) -> dict[str, float | int]:
        """The values of all controls; those that are not given are the defaults.

        Raises:
            ConfigError: there is no such control, or a value is out of range.
        """
        controls = {control.name: control for control in self.controls}
        for name in given:
            if name not in controls:
                raise ConfigError(
                    f"The lesson {self.name} has no number {name!r}. {nearest(name, controls)}"
                )
        return {
            name: control.value_of(given.get(name, control.default))
            for name, control in controls.items()
        }

    def values(self) -> dict[str, Any]:
        """What its page shows besides the picture."""
        controls = [vars(control) for control in self.controls]
        links = [vars(link) for link in self.links]
        return {
            "name": self.name,
            "title": self.title,
            "text": self.text,
            "tasks": self.tasks,
            "controls": controls,
            "links": links,
        }


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, each as one line; formulas keep their four spaces."""
    parts = [part.strip("\n") for part in text.split("\n\n") if part.strip()]
    return [p if p.startswith("    ") else " ".join(p.split()) for p in parts]


LESSONS = {name: Lesson.read(name) for name in ORDER}


def listed() -> list[dict[str, str]]:
    """The names and titles of all lessons, in the order in which they are shown."""
    return [{"name": lesson.name, "title": lesson.title} for lesson in LESSONS.values()]


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
    with _drawing:  # a class that opens a lesson at once has its picture computed once
        picture = _drawn(name, tuple(values.items()))
    return {**LESSONS[name].values(), "numbers": values, "picture": picture}


_drawing = threading.Lock()


@lru_cache(maxsize=256)
def _drawn(name: str, values: tuple[tuple[str, float], ...]) -> dict[str, Any]:
    return plain_picture(LESSONS[name].draw(**dict(values)))
