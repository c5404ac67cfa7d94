"""What a server offers: its routes, and the page of the studio if it has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from regard.serving.guards import Guard
from regard.serving.page_files import PageFile
from regard.serving.routes import ROUTES, Route

if TYPE_CHECKING:
    from regard.serving.models import ServedModels
    from regard.tasks.verbs import TaskVerbs

Say = Callable[[str], None]


@dataclass(frozen=True)
class Reading:
    """Something that can be asked by POST and that no model computes.

    summary, request, example: as of a `Route`.
    answer: from the fields to the body, in a thread of its own.
    """

    path: str
    summary: str
    request: type[BaseModel]
    answer: Callable[[Any], Any]
    example: dict[str, Any]


def nothing_to_prepare(models: ServedModels, say: Say) -> None:
    """Nothing."""


@dataclass(frozen=True)
class ServedPage:
    """What is asked by POST, the files of a page by their paths, and who may ask.

    `regard serve` has the routes of tasks and no page.

    readings: what is asked of no model.
    prepare: is called with the models before they are served.
    """

    routes: Mapping[str, Route] = field(default_factory=lambda: ROUTES)
    files: Mapping[str, PageFile] = field(default_factory=dict)
    guard: type[Guard] = Guard
    readings: Mapping[str, Reading] = field(default_factory=dict)
    prepare: Callable[[ServedModels, Say], None] = nothing_to_prepare

    @property
    def asked(self) -> Mapping[str, Route | Reading]:
        """All that is asked by POST, by its path."""
        return {**self.routes, **self.readings}

    def paths_of(self, task: TaskVerbs) -> list[str]:
        """What a task can be asked."""
        return [path for path, route in self.routes.items() if route.takes(task)]
