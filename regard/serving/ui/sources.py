"""The routes that answer from files that the command names, and from lessons, without a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, Field, model_validator

from regard.errors import ConfigError
from regard.serving.requests import Listed, Request
from regard.serving.served_page import RouteWithoutModel
from regard.serving.ui import lessons
from regard.serving.ui.examples import Examples
from regard.serving.ui.maps import TextMaps
from regard.serving.ui.runs import RunFolders

if TYPE_CHECKING:
    from regard.serving.models import ServedModels

Name = Annotated[str, Field(max_length=1000)]


class Nothing(BaseModel):
    """No field."""

    model_config = Request.model_config


class NamedRun(Nothing):
    """A run or a comparison."""

    name: Name
    """As /ui/runs lists it."""


class NamedLesson(Nothing):
    """A lesson with its numbers."""

    name: Name
    """As /ui/lessons lists it."""
    numbers: Annotated[dict[str, float], Field(max_length=16)] = {}
    """Values of its controls; the others have their defaults."""


class NamedModel(Nothing):
    """A model."""

    model: Name
    """As /v1/models lists it."""


class MapOf(Nothing):
    """A map."""

    model: Name | None = None
    """A name of /ui/maps; the first one where not given."""


class NeighboursIn(MapOf):
    """What is nearest to a text of the map, or to a vector."""

    text: Annotated[int, Field(ge=0)] | None = None
    """The number of a text, from 0; itself is not among the neighbours."""
    vector: Annotated[Listed[float], Field(max_length=65536)] | None = None
    """A vector of the same model."""
    count: Annotated[int, Field(ge=1, le=100)] = 8
    """How many neighbours."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.text is None) == (self.vector is None):
            raise ConfigError("Give either `text` or `vector`.")
        return self


@dataclass(frozen=True)
class UISources:
    """The files that the command names."""

    runs: RunFolders = field(default_factory=RunFolders)
    maps: TextMaps = field(default_factory=TextMaps)
    examples: Examples = field(default_factory=Examples)

    def prepare(self, models: ServedModels, say: Callable[[str], None]) -> None:
        """What is computed before the page answers: examples, and the vectors of the texts."""
        self.examples.read(models)
        self.maps.embed(models, say)

    def neighbours(self, asked: NeighboursIn) -> dict[str, Any]:
        """See `TextMaps`."""
        if asked.text is not None:
            return self.maps.near_text(asked.model, asked.text, asked.count)
        return self.maps.near_vector(asked.model, asked.vector or [], asked.count)

    def routes(self) -> Mapping[str, RouteWithoutModel]:
        """The routes, by their paths."""
        runs, maps = self.runs, self.maps
        all_of_them = (
            RouteWithoutModel(
                "/ui/examples",
                "Texts for a model: the first of its validation data, where its folder knows them.",
                NamedModel,
                lambda asked: self.examples.of(asked.model),
                {"model": "translator"},
            ),
            RouteWithoutModel(
                "/ui/runs",
                "The runs and comparisons in the folders of the command.",
                Nothing,
                lambda asked: runs.listed(),
                {},
            ),
            RouteWithoutModel(
                "/ui/curves",
                "The charts of a run, of what it has written so far.",
                NamedRun,
                lambda asked: runs.curves(asked.name),
                {"name": "runs/translator"},
            ),
            RouteWithoutModel(
                "/ui/comparison",
                "The tables and charts of a comparison.",
                NamedRun,
                lambda asked: runs.comparison(asked.name),
                {"name": "runs/compare"},
            ),
            RouteWithoutModel(
                "/ui/maps",
                "The models that have a map of the texts of the command.",
                Nothing,
                lambda asked: maps.listed(),
                {},
            ),
            RouteWithoutModel(
                "/ui/map",
                "The points of all texts, with their labels.",
                MapOf,
                lambda asked: maps.map(asked.model),
                {"model": "minilm"},
            ),
            RouteWithoutModel(
                "/ui/neighbours",
                "The texts that are nearest to one of them, or to a vector.",
                NeighboursIn,
                self.neighbours,
                {"model": "minilm", "text": 0, "count": 8},
            ),
            RouteWithoutModel(
                "/ui/lessons",
                "The names and titles of the lessons.",
                Nothing,
                lambda asked: {"lessons": lessons.listed()},
                {},
            ),
            RouteWithoutModel(
                "/ui/lesson",
                "A lesson with its picture, for these numbers.",
                NamedLesson,
                lambda asked: lessons.lesson(asked.name, asked.numbers),
                {"name": "self-attention", "numbers": {"head_dim": 16}},
            ),
        )
        return {one.path: one for one in all_of_them}
