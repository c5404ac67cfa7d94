"""Examples of lectures as pages, each with a picture that is computed from tensors.

NAME.md        a lesson: its controls and links in TOML, then its text and questions
functions.py   from the numbers of a lesson to its picture
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, create_model

from regard.errors import ConfigError
from regard.schema import checked
from regard.serving.problems import named
from regard.serving.requests import RequestFields
from regard.serving.ui.lessons import functions
from regard.serving.ui.views import plain_picture
from regard.visual.picture import Picture

ORDER = (
    "subword-merges longest-match bert-inputs positions cells self-attention masks "
    "sparse-attention next-word parses"
).split()


class Control(NamedTuple):
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


class Link(NamedTuple):
    """A view that shows the same of a model that is served.

    route: that a model must have.  parameters: of the view's address, besides the model.
    """

    view: str
    label: str
    route: str
    parameters: Mapping[str, str] = {}


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
    text: list[str]
    draw: Callable[..., Picture]
    controls: list[Control]
    tasks: list[str]
    links: list[Link]

    def values_of(self, numbers: Mapping[str, float]) -> dict[str, float | int]:
        """The values of all controls; those that are not given are the defaults.

        Raises:
            Problem: there is no such control.
            ConfigError: a value is out of range.
        """
        whole = {n: int(v) if float(v).is_integer() else v for n, v in numbers.items()}
        kinds: dict[str, Any] = {
            name: (float if step % 1 else int, Field(default, ge=low, le=high))
            for name, _, default, low, high, step in self.controls
        }
        schema = create_model("Numbers", __base__=RequestFields, **kinds)
        values: RequestFields = checked(whole, schema, "`numbers`", ConfigError)
        return values.model_dump()

    def page(self, numbers: Mapping[str, float]) -> dict[str, Any]:
        """What its page shows, for values of its controls."""
        values = self.values_of(numbers)
        return {
            **{name: value for name, value in vars(self).items() if name != "draw"},
            "controls": [control._asdict() for control in self.controls],
            "links": [link._asdict() for link in self.links],
            "numbers": values,
            "picture": plain_picture(self.draw(**values)),
        }


def _read(name: str) -> Lesson:
    """The lesson in NAME.md."""
    path = Path(__file__).with_name(f"{name}.md")
    _, facts, page = path.read_text(encoding="utf-8").split("+++\n")
    values = tomllib.loads(facts)
    text, _, questions = page.partition("## Questions")
    parts = [part.strip("\n") for part in text.split("\n\n") if part.strip()]
    return Lesson(
        name,
        values["title"],
        [f"  {p.strip()}" if p.startswith("    ") else " ".join(p.split()) for p in parts],
        getattr(functions, values["draw"]),
        [Control(*row) for row in values.get("controls", ())],
        [" ".join(question.split()) for question in f"\n{questions.strip()}".split("\n- ")[1:]],
        [Link(*row) for row in values.get("links", ())],
    )


LESSONS = {name: _read(name) for name in ORDER}


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
    return named(LESSONS, name, "lesson").page(numbers)
