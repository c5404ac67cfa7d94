"""What every decoding method offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from regard.data.batches import Sequences
    from regard.decoding.hypothesis import Hypothesis
    from regard.decoding.settings import Settings
    from regard.models.protocols import Generator


@runtime_checkable
class Method(Protocol):
    """A frozen dataclass of the options of a decoding method."""

    def run(self, model: Generator, source: Sequences | None) -> list[list[Hypothesis]]:
        """The hypotheses of each source or prompt, best first; None: of one empty prompt."""
        ...

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """From options under the names of generation_config.json."""
        ...

    def settings(self) -> dict[str, Any]:
        """The options under the names of generation_config.json."""
        ...
