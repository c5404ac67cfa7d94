"""The verbs of tasks, and what is said where a task does not have one.

model = regard.load("bert-base-uncased")
model.generate("The man")       a model of masked-words has no `generate`. Use fill, predict, ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from regard.errors import ConfigError
from regard.schema import either

# method -> what it does; of the task that it belongs to
METHODS = {
    "predict": "answers a text",
    "translate": "turns a text into another",
    "generate": "continues a text",
    "stream": "continues a text",
    "hypotheses": "searches for the most probable text",
    "last_words": "predicts the last word of a text",
    "fill": "fills masks",
    "follows": "tells whether a text follows another",
    "tag": "tags the words of a text",
    "answer": "answers a question from a context",
    "answers": "gives answers with their probabilities",
    "embed": "gives the vector of a text",
    "embed_stream": "gives the vectors of texts",
    "similarity": "compares the vectors of texts",
    "evaluate": "scores answers",
}


class NoSuchVerb(ConfigError, AttributeError):
    """The task of this model does not have a verb that others have."""


class TaskVerbs:
    """Base of tasks. `verbs` are those of the command line that the task has, its own first."""

    name: ClassVar[str]
    verbs: ClassVar[tuple[str, ...]]

    def require(self, verb: str, model: Any, problem: str = "") -> None:
        """Checks that the command line may use a verb on the model of this folder.

        Raises:
            ConfigError: the task has no such verb; the right one is named.
        """
        if verb not in self.verbs:
            said = problem or f"{model} holds a model of {self.name}, which has no {verb}."
            raise ConfigError(f"{said} {self.instead(model)}")

    def instead(self, model: Any) -> str:
        """The verb to use."""
        return f"Use: regard {self.verbs[0]} {model} TEXT"

    @classmethod
    def trains(cls, model: type) -> bool:
        """Whether models of this class can learn the task."""
        return True

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """Options of a recipe that are without effect or lack what they need: dotted name, problem.

        They are known before any data are read.
        """
        yield from ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            if name not in METHODS:
                raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
            own = [f"`{verb}`" for verb in METHODS if hasattr(kind, verb)]
            raise NoSuchVerb(
                f"`{name}` {METHODS[name]}, but this is a model of {self.name}, which does not. "
                f"It has {either(own).replace(' or ', ' and ')}."
            )
