"""What is made once and kept for later runs: whole or not at all, whoever stops or makes it too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def kept(place: Path, make: Callable[[Path], object]) -> Path:
    """A file or a folder; where there is none, `make` writes it under the path that it is given.

    It is written beside its place and renamed when it is whole.
    """
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as room:
            made = Path(room, place.name)
            make(made)
            try:
                os.rename(made, place)
            except OSError:
                if not place.exists():  # somebody else made it meanwhile
                    raise
    return place
