"""Files that are made once and cached for later runs; a stopped process leaves no partial one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cached(place: Path, make: Callable[[Path], object]) -> Path:
    """The path of a cached file or folder; where there is none, `make` writes it to a path.

    place: where it is cached. It is written beside that, and renamed when it is complete.
    """
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as folder:
            made = Path(folder, place.name)
            make(made)
            try:
                os.rename(made, place)
            except OSError:
                if not place.exists():  # another process made it meanwhile
                    raise
    return place
