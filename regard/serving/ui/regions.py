"""Images with their descriptions, and what each word of them attends to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.serving.calls import regions_of
from regard.serving.ui.pictures import plain_picture

if TYPE_CHECKING:
    from regard.tasks.task import Task


def pictures_of_regions(task: Task, items: list[str], options: dict[str, Any]) -> list[Any]:
    """Each image once for each word of its description, bright where its weights are large."""
    return [{"picture": plain_picture(one)} for one in regions_of(task, items, options)]
