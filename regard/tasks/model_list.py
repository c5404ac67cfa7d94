"""`regard.list_models`: the models that can be trained, with their tasks and sizes."""

from __future__ import annotations

from dataclasses import dataclass

from regard.models import MODELS, model_class
from regard.tasks import TASKS, task_class


@dataclass(frozen=True)
class ListedModel:
    """A model by its name: the tasks that it can be trained for, and the names of its sizes."""

    name: str
    tasks: tuple[str, ...]
    sizes: tuple[str, ...]

    def __repr__(self) -> str:
        sizes = f": {', '.join(self.sizes)}" if self.sizes else ""
        return f"<{self.name}{sizes}>"

    def __str__(self) -> str:
        sizes = f" ({', '.join(self.sizes)})" if self.sizes else ""
        return f"{self.name}{sizes}: {', '.join(self.tasks)}"


def list_models(task: str | None = None) -> list[ListedModel]:
    """The registered models, in the order of history.

    task: only those that can be trained for it; None: all.

    Raises:
        ConfigError: there is no such task.
    """
    chosen = [task_class(name) for name in (TASKS if task is None else [task])]
    found = []
    for name in MODELS:
        model = model_class(name)
        tasks = tuple(one.name for one in chosen if one.Recipe is not None and one.trains(model))
        if tasks or task is None:
            found.append(ListedModel(name, tasks, tuple(model.SIZES)))
    return found
