"""What tasks answer: every answer has one text form and plain values, so that no caller guesses.

str(answer)         the answer as a text: a label, tags, a number
answer.values()     all that is known of it as JSON has it, by name

An answer is a frozen dataclass on `TaskAnswer`, named by its task as `answer_type`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class TaskAnswer(ABC):
    """What a task answers to one text.

    NAMES: field -> its name in `values`, where that differs.
    """

    NAMES: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def __str__(self) -> str: ...

    def values(self) -> dict[str, Any]:
        """All fields as plain values."""
        return {self.NAMES.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def nothing(cls) -> dict[str, Any]:
        """The same names where nothing was asked, as on an empty line: None for each."""
        return dict.fromkeys(cls.NAMES.get(field.name, field.name) for field in fields(cls))
