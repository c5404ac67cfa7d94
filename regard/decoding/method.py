"""What every decoding method offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from regard.data.batches import Sequences
    from regard.decoding.hypothesis import Hypothesis
    from regard.models.protocols import Generator


@runtime_checkable
class Method(Protocol):
    """A frozen dataclass of the options of a decoding method.

    Its class method `from_settings` takes the options back, as `regard.decoding.settings.Settings`.
    """

    def run(self, model: Generator, source: Sequences | None) -> list[list[Hypothesis]]:
        """The hypotheses of each source or prompt, best first; without any, of one empty prompt."""

    def settings(self) -> dict[str, Any]:
        """The options under the names of generation_config.json."""
