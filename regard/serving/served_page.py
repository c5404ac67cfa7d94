"""What a server offers: its routes, and the web UI if it has one."""

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
    from regard.tasks.task import Task

Say = Callable[[str], None]


@dataclass(frozen=True)
class RouteWithoutModel:
    """A route that is asked by POST and answered without a model: from files, or by a lesson.

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
    """The routes asked by POST, the files of a page by their paths, and the guard.

    `regard serve` has the routes of tasks and no page.

    routes_without_model: those that no model answers.
    prepare: is called with the models before they are served.
    """

    routes: Mapping[str, Route] = field(default_factory=lambda: ROUTES)
    files: Mapping[str, PageFile] = field(default_factory=dict)
    guard: type[Guard] = Guard
    routes_without_model: Mapping[str, RouteWithoutModel] = field(default_factory=dict)
    prepare: Callable[[ServedModels, Say], None] = nothing_to_prepare

    @property
    def asked(self) -> Mapping[str, Route | RouteWithoutModel]:
        """All routes asked by POST, by their paths."""
        return {**self.routes, **self.routes_without_model}

    def paths_of(self, task: Task) -> list[str]:
        """The paths of the routes that a task has."""
        return [path for path, route in self.routes.items() if route.available_for(task)]
