"""Files that are made once and cached for later runs; a stopped process leaves no partial one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cached(path: Path, make: Callable[[Path], object]) -> Path:
    """The path of a cached file or folder; where there is none, `make` writes it to a path.

    path: where it is cached. It is written beside that, and renamed when it is complete.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
            made = Path(folder, path.name)
            make(made)
            try:
                os.rename(made, path)
            except OSError:
                if not path.exists():  # another process made it meanwhile
                    raise
    return path
