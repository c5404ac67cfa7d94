"""What a server offers: its routes, and the page of the studio if it has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from regard.serving.guards import Guard
from regard.serving.page_files import PageFile
from regard.serving.routes import ROUTES, Route

if TYPE_CHECKING:
    from regard.tasks.verbs import TaskVerbs


@dataclass(frozen=True)
class ServedPage:
    """What is asked by POST, the files of a page by their paths, and who may ask.

    `regard serve` has the routes of tasks and no page.
    """

    routes: Mapping[str, Route] = field(default_factory=lambda: ROUTES)
    files: Mapping[str, PageFile] = field(default_factory=dict)
    guard: type[Guard] = Guard

    def paths_of(self, task: TaskVerbs) -> list[str]:
        """What a task can be asked."""
        return [path for path, route in self.routes.items() if route.takes(task)]
