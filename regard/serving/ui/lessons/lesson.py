"""A lesson: a few sentences, a picture that is computed, numbers to change, a link to a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from regard.errors import ConfigError, shown
from regard.suggest import nearest
from regard.visual.picture import Picture


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

    def values_of(self, given: Mapping[str, float]) -> dict[str, float | int]:
        """The values of all controls; those that are not given are the defaults.

        Raises:
            ConfigError: there is no such control, or a value is out of range.
        """
        known = {control.name: control for control in self.controls}
        for name in given:
            if name not in known:
                raise ConfigError(
                    f"The lesson {self.name} has no number {name!r}. {nearest(name, known)}"
                )
        return {
            name: control.value_of(given.get(name, control.default))
            for name, control in known.items()
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
