"""Finds the data files of a run in another folder, by their paths and checksums.

For a recorded file /old/corpus/train.txt these paths are tried in this order:
DIR/old/corpus/train.txt, DIR/corpus/train.txt, DIR/train.txt. The first file that exists and has
the recorded checksum is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.data.files import hash_of, split_member
from regard.errors import DataError


def relocate_data(recipe: Any, recorded: Mapping[str, str], root: Path) -> Any:
    """The recipe with its data paths replaced by those of the same files under `root`.

    recorded: the recorded path of each data file -> its SHA-256.

    Raises:
        DataError: `root` is not a folder, or files in it are missing or have another checksum; the
            message names all of them.
    """
    if not root.is_dir():
        raise DataError(
            root, None, "is not a folder.", "Name the folder that contains the data now."
        )
    located: dict[str, str] = {}
    problems = []
    for name, checksum in recorded.items():
        path, problem = _locate(name, checksum, root.absolute())
        located[name] = path
        problems += [problem] * bool(problem)
    if problems:
        raise DataError(
            root, None, "does not contain the data of this run:\n  " + "\n  ".join(problems)
        )
    changes = {
        field: _relocated(value, located)
        for field, value in recipe.data
        if _relocated(value, located) != value
    }
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=changes)})


def missing_files(recorded: Mapping[str, str]) -> list[str]:
    """The recorded files that no longer exist at their recorded paths."""
    return [name for name in recorded if not split_member(name)[0].exists()]


def _locate(name: str, checksum: str, root: Path) -> tuple[str, str]:
    """(the file's path under `root`, ""), or ("", what is wrong)."""
    differing = ""
    for path in _candidate_paths(name, root):
        if not split_member(path)[0].is_file():
            continue
        if (now := hash_of(path)) == checksum:
            return path, ""
        differing = differing or (
            f"{name}: {path} is another file: its SHA-256 must be {checksum[:12]}…, but is "
            f"{now[:12]}…"
        )
    *_, last = _candidate_paths(name, root)
    return "", differing or f"{name}: was not found, for example at {last}"


def _candidate_paths(name: str, root: Path) -> Iterator[str]:
    """The paths that are tried for a file: `root` with each tail of its path, the longest first."""
    archive, member = split_member(name)
    parts = archive.parts[1:] if archive.is_absolute() else archive.parts
    if ".." in parts:
        parts = parts[len(parts) - parts[::-1].index("..") :]
    for first in range(len(parts)):
        path = str(root.joinpath(*parts[first:]))
        yield f"{path}!{member}" if member else path


def _relocated(value: Any, located: Mapping[str, str]) -> Any:
    """The value of an option of [data] with its paths replaced: of a file, a folder or several."""
    if isinstance(value, tuple):
        return tuple(_relocated(item, located) for item in value)
    if not isinstance(value, Path):
        return value
    if str(value) in located:
        return Path(located[str(value)])
    inside = {name: path for name, path in located.items() if name.startswith(f"{value}/")}
    folders = set()
    for name, path in inside.items():
        rest = name.removeprefix(f"{value}/")
        if not path.endswith(f"/{rest}"):
            raise DataError(path, None, f"must be in a folder like {value}, as {rest}.")
        folders.add(path.removesuffix(f"/{rest}"))
    if len(folders) > 1:
        listed = ", ".join(sorted(folders))
        raise DataError(value, None, f"its files must be in one folder, but are in {listed}.")
    return Path(folders.pop()) if folders else value
