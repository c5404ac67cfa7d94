"""What the web UI shows besides models: the files that the command names, and lessons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from regard.data.readers import read_labelled
from regard.errors import ConfigError, RegardError
from regard.serving.problems import Problem, named
from regard.serving.requests import Fields, Listed, RequestFields
from regard.serving.ui import lessons
from regard.tasks.embedder import EmbedsTexts
from regard.visual.drawing import visible
from regard.visual.texts import TextMap

if TYPE_CHECKING:
    from regard.serving.models import ServedModels
    from regard.tasks.task import Task


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


class UISources:
    """What the command names: folders of models by name, and a file of texts with labels."""

    def __init__(
        self, models: Mapping[str, Path], texts: Path | None = None, labels: str | None = None
    ):
        self.maps, self.examples = TextMaps(texts, labels), Examples(models)

    def prepare(self, models: ServedModels, say: Callable[[str], None]) -> None:
        """What is computed before the page answers: examples, and the vectors of the texts."""
        self.examples.read(models)
        self.maps.embed(models, say)

    def router(self) -> APIRouter:
        """The routes. No model answers them: each is computed in a thread of its own."""
        router = APIRouter()

        @router.post("/ui/examples")
        def examples(asked: NamedModel) -> Fields:
            """Texts for a model: the first of its validation data, where its folder knows them."""
            return self.examples.of(asked.model)

        @router.post("/ui/maps")
        def maps(asked: Nothing) -> Fields:
            """The models that have a map of the texts of the command."""
            return self.maps.listed()

        @router.post("/ui/map")
        def text_map(asked: MapOf) -> Fields:
            """The points of all texts, with their labels."""
            return self.maps.map(asked.model)

        @router.post("/ui/neighbours")
        def neighbours(asked: NeighboursIn) -> Fields:
            """The texts that are nearest to one of them, or to a vector."""
            return self.maps.neighbours(asked)

        @router.post("/ui/lessons")
        def lesson_list(asked: Nothing) -> Fields:
            """The names and titles of the lessons."""
            return {"lessons": lessons.listed()}

        @router.post("/ui/lesson")
        def lesson(asked: NamedLesson) -> Fields:
            """A lesson with its picture, for these numbers."""
            return lessons.lesson(asked.name, asked.numbers)

        return router


NEUTRAL = (
    "The animal didn't cross the street because it was too tired.",
    "She put the keys on the table and forgot them.",
    "Tokenizers split unbelievably rare words, such as tokenization.",
)
LINES = 3  # of a language model's data
SHORTEST, LONGEST = 40, 300  # characters of a line, of an example


class Examples:
    """The examples of each model that is served.

    folders: of the models, by their names; a run or its `model` knows the data of the training.
    """

    def __init__(self, folders: Mapping[str, Path] | None = None):
        self.folders = dict(folders or {})
        self.own: dict[str, list[tuple[str, ...]]] = {}

    def read(self, models: ServedModels) -> None:
        """Read the examples of all models."""
        for name, served in models.all.items():
            folder = self.folders.get(name)
            self.own[name] = [] if folder is None else _validation_texts(served.task, folder)

    def of(self, name: str) -> Fields:
        """The examples of a model: a text, or two of a pair; and whether they are its own.

        Raises:
            Problem: 404 where there is no such model.
        """
        own = named(self.own, name)
        return {"model": name, "own": bool(own), "texts": own or [(text,) for text in NEUTRAL]}


def _validation_texts(task: Task, folder: Path) -> list[tuple[str, ...]]:
    """The first validation texts of the run in a folder; none where it or its data is not there."""
    from regard.experiments.recipe_options import read_recipe

    runs = [path for path in (folder, folder.resolve().parent) if (path / "recipe.toml").is_file()]
    try:
        recipe = read_recipe(runs[0] / "recipe.toml") if runs else None
        inputs = [] if recipe is None else [*_lines(task, recipe), *task.attention_inputs(recipe)]
        inputs = [path for path in inputs if not task.over_limit([path])]
    except (RegardError, OSError):  # the data has been moved, for instance
        return []
    examples = map(_texts, inputs)
    return [texts for texts in examples if any(texts) and sum(map(len, texts)) <= LONGEST]


def _lines(task: Task, recipe: Any) -> list[str]:
    """The beginnings of some validation lines, for a language model."""
    if task.name != "language-modeling":
        return []
    lines = (line for line in recipe.data.records("valid").texts() if len(line) >= SHORTEST)
    return [line[:LONGEST].strip() for line in islice(lines, LINES)]


def _texts(inputs: Any) -> tuple[str, ...]:
    """What a task reads as one or two texts: words, which a list holds, are joined."""
    if isinstance(inputs, str):
        return (inputs,)
    return (" ".join(inputs),) if isinstance(inputs, list) else tuple(inputs)


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
        DataError: see `regard.data.readers`.
    """

    def __init__(self, file: Path | None = None, labels: str | None = None):
        self.texts, self.labels = list[str](), list[str]()
        if file is not None:
            self.texts, self.labels = read_labelled(file, labels, MOST_TEXTS)
        self.maps: dict[str, TextMap] = {}

    def embed(self, models: ServedModels, say: Callable[[str], None]) -> None:
        """Make the maps. Texts beyond the limit of a model are cut there."""
        for name, served in models.all.items():
            if self.texts and gives_vectors(served.task):
                say(f"embedding {len(self.texts):,} texts with {name}")
                try:
                    vectors = served.task.embed(self.texts, too_long="truncate")
                    self.maps[name] = TextMap.of(vectors, self.texts, self.labels)
                except RegardError as error:
                    say(f"no map by {name}: {error}")

    def listed(self) -> Fields:
        """The models that have a map, and the number of texts."""
        return {"models": list(self.maps), "texts": len(self.texts)}

    def map(self, model: str | None) -> Fields:
        """All points: (x, y), the text, and the number of its label.

        Raises:
            Problem: 404 where the model has no map.
        """
        name, text_map = self._named(model)
        labels = sorted(set(text_map.labels))
        return {
            "model": name,
            "points": [[round(x, 5), round(y, 5)] for x, y in text_map.points.tolist()],
            "texts": [_short(text) for text in text_map.texts],
            "labels": [visible(label) for label in labels],
            "label_of": [labels.index(label) for label in text_map.labels],
            "shares": [round(share, 5) for share in text_map.shares],
        }

    def neighbours(self, asked: NeighboursIn) -> Fields:
        """Where a text of the map or another vector lies, and its neighbours, without itself.

        Raises:
            Problem: 404 where the model has no map, 400 where there is no such text.
            ConfigError: the vector has another size.
        """
        name, text_map = self._named(asked.model)
        if (asked.text is None) == (asked.vector is None):
            raise Problem(400, "Give either `text` or `vector`.", "invalid_body")
        place: Sequence[float]
        if asked.text is None:
            nearest = text_map.nearest(asked.vector, asked.count)
            place = text_map.place(asked.vector)
        elif asked.text < len(text_map.texts):
            nearest = text_map.nearest(text_map.vectors[asked.text], asked.count + 1)
            place = text_map.points[asked.text].tolist()
        else:
            message = f"`text` must be below {len(text_map.texts)}, but is {asked.text}."
            raise Problem(400, message, "no_such_text", "text")
        others = [_match(match) for match in nearest if match.index != asked.text][: asked.count]
        return {"model": name, "place": list(place), "neighbours": others}

    def _named(self, model: str | None) -> tuple[str, TextMap]:
        name = next(iter(self.maps), "") if model is None else model
        return name, named(self.maps, name, "map")


def _match(one: Any) -> Fields:
    return {"text": one.index, "cosine": round(one.score, 6)}


def _short(text: str) -> str:
    shown = visible(text)
    return shown if len(shown) <= SHOWN else shown[: SHOWN - 1] + "…"
