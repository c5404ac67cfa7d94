"""The files of the model that a training starts from, which belong to what a run is.

Until it is finished, a run keeps them in its folder, so that it can be resumed where the model's
own folder has been removed: RUN/start/ has hard links to the weights, which take no space, or
copies of them where the run is on another disk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.checkpoints.hub import files_of_model, folder_of
from regard.data import hash_of
from regard.errors import CheckpointError, ConfigError
from regard.experiments.recipe_options import FineTuneSection
from regard.file_writing import not_written
from regard.schema import change_lines

START = "start"
SMALL = 1 << 20  # bytes; smaller files are copied, so that an editor does not change them


def checksums_of(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file that a model is read from, by its name in the folder."""
    files = files_of_model(folder)
    return {str(file.relative_to(folder)): hash_of(file) for file in files}


def keep_start(section: Any, run: Path) -> None:
    """Keep the files of the model that [model] `path` names in the folder of a run.

    Raises:
        CheckpointError: they cannot be written.
    """
    if not isinstance(section, FineTuneSection):
        return
    source = folder_of(section.path)
    for file in files_of_model(source):
        kept = run / START / file.relative_to(source)
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.unlink(missing_ok=True)
            _link_or_copy(file.resolve(), kept)
        except OSError as error:
            raise not_written(kept, error) from error


def _link_or_copy(file: Path, new: Path) -> None:
    if file.stat().st_size >= SMALL:
        try:
            os.link(file, new)
        except OSError:  # another disk, or one without links
            pass
        else:
            return
    shutil.copyfile(file, new)


def kept_start(run: Path) -> Path | None:
    """The folder of the model that an unfinished run started from, if the run keeps it."""
    return run / START if (run / START).is_dir() else None


def remove_start(run: Path) -> None:
    """Remove what `keep_start` has kept, from a run that is finished."""
    shutil.rmtree(run / START, ignore_errors=True)


def check_start(section: Any, recorded: Mapping[str, str], run: Path) -> bool:
    """Check that the model that a run started from is what it was, if its folder is still there.

    recorded: the checksums that the run has recorded.

    Returns:
        False where the folder is gone.

    Raises:
        ConfigError: its files have changed; all that differ are named.
    """
    if not isinstance(section, FineTuneSection) or not recorded:
        return True
    try:
        folder = folder_of(section.path, download=False)
    except CheckpointError:  # it has been removed
        return False
    if changes := change_lines(recorded, checksums_of(folder)):
        raise ConfigError(
            f"the model that {run} started from, {folder}, has changed since:{changes}\nPut its "
            "files back, or train into another folder."
        )
    return True
