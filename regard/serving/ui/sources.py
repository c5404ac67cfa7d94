"""What the web UI shows besides models: the files that the command names, and lessons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from fastapi import APIRouter
from pydantic import Field

from regard.serving.problems import Problem
from regard.serving.requests import Listed, RequestFields
from regard.serving.ui import lessons
from regard.serving.ui.examples import Examples
from regard.serving.ui.maps import TextMaps

if TYPE_CHECKING:
    from regard.serving.models import ServedModels

Name = Annotated[str, Field(max_length=1000)]


class Nothing(RequestFields):
    """No field."""


class NamedLesson(RequestFields):
    """A lesson with its numbers."""

    name: Name
    """As /ui/lessons lists it."""
    numbers: Annotated[dict[str, float], Field(max_length=16)] = {}
    """Values of its controls; the others have their defaults."""


class NamedModel(RequestFields):
    """A model."""

    model: Name
    """As /v1/models lists it."""


class MapOf(RequestFields):
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


@dataclass(frozen=True)
class UISources:
    """The files that the command names."""

    maps: TextMaps
    examples: Examples

    @classmethod
    def of(
        cls,
        models: Mapping[str, Path],
        texts: Path | None = None,
        labels: str | None = None,
    ) -> Self:
        """Of the folders of models by name, and a file of texts with labels."""
        return cls(TextMaps(texts, labels), Examples(models))

    def prepare(self, models: ServedModels, say: Callable[[str], None]) -> None:
        """What is computed before the page answers: examples, and the vectors of the texts."""
        self.examples.read(models)
        self.maps.embed(models, say)

    def router(self) -> APIRouter:
        """The routes. No model answers them: each is computed in a thread of its own."""
        router = APIRouter()

        @router.post("/ui/examples")
        def examples(asked: NamedModel) -> dict[str, Any]:
            """Texts for a model: the first of its validation data, where its folder knows them."""
            return self.examples.of(asked.model)

        @router.post("/ui/maps")
        def maps(asked: Nothing) -> dict[str, Any]:
            """The models that have a map of the texts of the command."""
            return self.maps.listed()

        @router.post("/ui/map")
        def text_map(asked: MapOf) -> dict[str, Any]:
            """The points of all texts, with their labels."""
            return self.maps.map(asked.model)

        @router.post("/ui/neighbours")
        def neighbours(asked: NeighboursIn) -> dict[str, Any]:
            """The texts that are nearest to one of them, or to a vector."""
            if (asked.text is None) == (asked.vector is None):
                raise Problem(400, "Give either `text` or `vector`.", "invalid_body")
            if asked.text is not None:
                return self.maps.near_text(asked.model, asked.text, asked.count)
            return self.maps.near_vector(asked.model, asked.vector or [], asked.count)

        @router.post("/ui/lessons")
        def lesson_list(asked: Nothing) -> dict[str, Any]:
            """The names and titles of the lessons."""
            return {"lessons": lessons.listed()}

        @router.post("/ui/lesson")
        def lesson(asked: NamedLesson) -> dict[str, Any]:
            """A lesson with its picture, for these numbers."""
            return lessons.lesson(asked.name, asked.numbers)

        return router
