"""A file of texts as a map for each model that gives vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.data.labelled_texts import LabelledTexts, read_labelled
from regard.errors import ConfigError, RegardError
from regard.serving.problems import Problem
from regard.tasks.embedder import EmbedsTexts
from regard.visual.drawing import visible
from regard.visual.text_map import TextMap

if TYPE_CHECKING:
    from regard.serving.models import ServedModels
    from regard.tasks.task import Task

MOST_TEXTS = 5000  # more points cannot be told apart
SHOWN = 400  # characters of a text that a page gets


def gives_vectors(task: Task) -> bool:
    """Whether the model of a task gives vectors of texts."""
    if not isinstance(task, EmbedsTexts) or task.reads_images:
        return False
    try:
        task.text_encoder()
    except ConfigError:  # n-grams
        return False
    return True


class TextMaps:
    """The texts of a file, embedded once by each model that can; clients name models alone.

    Args:
        file: of the texts; None: there are no maps.
        labels: the column of the labels.

    Raises:
        DataError: see `regard.data.labelled_texts`.
    """

    def __init__(self, file: Path | None = None, labels: str | None = None):
        given = LabelledTexts(()) if file is None else read_labelled(file, labels, MOST_TEXTS)
        self.texts = given
        self.maps: dict[str, TextMap] = {}

    def embed(self, models: ServedModels, say: Callable[[str], None]) -> None:
        """Make the maps. Texts beyond the limit of a model are cut there."""
        for name, served in models.all.items():
            if self.texts.texts and gives_vectors(served.task):
                say(f"embedding {len(self.texts.texts):,} texts with {name}")
                try:
                    vectors = served.task.embed(list(self.texts.texts), too_long="truncate")
                    self.maps[name] = TextMap.of(vectors, self.texts.texts, self.texts.labels)
                except RegardError as error:
                    say(f"no map by {name}: {error}")

    def listed(self) -> dict[str, Any]:
        """The models that have a map, and the number of texts."""
        return {"models": list(self.maps), "texts": len(self.texts.texts)}

    def map(self, model: str | None) -> dict[str, Any]:
        """All points: (x, y), the text, and the number of its label.

        Raises:
            Problem: 404 where the model has no map.
        """
        name, found = self._named(model)
        labels = sorted(set(found.labels))
        return {
            "model": name,
            "points": [[round(x, 5), round(y, 5)] for x, y in found.points.tolist()],
            "texts": [_short(text) for text in found.texts],
            "labels": [visible(label) for label in labels],
            "label_of": [labels.index(label) for label in found.labels],
            "shares": [round(share, 5) for share in found.shares],
        }

    def near_text(self, model: str | None, index: int, count: int) -> dict[str, Any]:
        """The neighbours of a text of the map, without itself.

        Raises:
            Problem: 404 where the model has no map, 400 where there is no such text.
        """
        name, found = self._named(model)
        if index >= len(found.texts):
            message = f"`text` must be below {len(found.texts)}, but is {index}."
            raise Problem(400, message, "no_such_text", "text")
        nearest = found.nearest(found.vectors[index], count + 1)
        others = [one for one in nearest if one.index != index][:count]
        place = found.points[index].tolist()
        return {"model": name, "place": place, "neighbours": [_match(one) for one in others]}

    def near_vector(self, model: str | None, vector: Sequence[float], count: int) -> dict[str, Any]:
        """Where another vector lies in the map, and its neighbours.

        Raises:
            Problem: 404 where the model has no map.
            ConfigError: the vector has another size.
        """
        name, found = self._named(model)
        nearest = found.nearest(vector, count)
        place = list(found.place(vector))
        return {"model": name, "place": place, "neighbours": [_match(one) for one in nearest]}

    def _named(self, model: str | None) -> tuple[str, TextMap]:
        name = next(iter(self.maps), "") if model is None else model
        if name not in self.maps:
            has = ", ".join(self.maps) or "none"
            message = f"The model {name!r:.80} has no map of texts. Those with one: {has}."
            raise Problem(404, message, "no_such_map", "model")
        return name, self.maps[name]


def _match(one: Any) -> dict[str, Any]:
    return {"text": one.index, "cosine": round(one.score, 6)}


def _short(text: str) -> str:
    shown = visible(text)
    return shown if len(shown) <= SHOWN else shown[: SHOWN - 1] + "…"
