"""What a task predicts for one text: each prediction has a text form and plain values.

str(prediction)         as a text: a label, tags, a number
prediction.values()     all its fields by name, as values that JSON can contain

A prediction is a frozen dataclass derived from `Prediction`, whose first field is the result; its
task names the class as `prediction_type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class Prediction:
    """What a task predicts for one text.

    NAMES: field -> its key in `values`, where that differs.
    """

    NAMES: ClassVar[Mapping[str, str]] = {}

    @property
    def result(self) -> Any:
        """What `predict` returns for the text: the first field."""
        return getattr(self, fields(self)[0].name)

    def __str__(self) -> str:
        return str(self.result)

    def values(self) -> dict[str, Any]:
        """All fields as plain values."""
        return {self.NAMES.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def empty_values(cls) -> dict[str, Any]:
        """The keys of `values` with None for each: the prediction for an empty line."""
        return dict.fromkeys(cls.NAMES.get(field.name, field.name) for field in fields(cls))


@dataclass(frozen=True)
class MaskCandidate:
    """A word for a mask: as text, as the vocabulary writes it, and its probability."""

    word: str
    token: str
    probability: float


@dataclass(frozen=True)
class FilledText(Prediction):
    """A text with the most probable word at each mask; and for each mask the best candidates.

    The probability of a candidate is that for this mask alone: the best words of several masks need
    not be the best together.
    """

    text: str
    masks: list[list[MaskCandidate]]


@dataclass(frozen=True)
class TextMatch:
    """A text that was found: its index among those searched, its cosine, and the text."""

    index: int
    score: float
    text: str
