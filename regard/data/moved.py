"""Data that has moved, found under another folder by its checksum.

A recorded file /old/corpus/train.txt is looked for as DIR/old/corpus/train.txt, then as
DIR/corpus/train.txt, then as DIR/train.txt: the longest end of its path that is there and has the
recorded checksum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.data.files import hash_of, split_member
from regard.errors import DataError


def with_moved_data(recipe: Any, recorded: Mapping[str, str], root: Path) -> Any:
    """The recipe with the paths of its data where the recorded files lie under `root`.

    recorded: the SHA-256 of each file by the name that it had.

    Raises:
        DataError: `root` is no folder, or files are missing in it or differ; all are named.
    """
    if not root.is_dir():
        raise DataError(root, None, "is no folder.", "Name the one that now holds the data.")
    found: dict[str, str] = {}
    problems = []
    for name, checksum in recorded.items():
        place, problem = _found(name, checksum, root.absolute())
        found[name] = place
        problems += [problem] * bool(problem)
    if problems:
        raise DataError(
            root, None, "does not hold the data of this run:\n  " + "\n  ".join(problems)
        )
    changes = {
        field: _moved(value, found) for field, value in recipe.data if _moved(value, found) != value
    }
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=changes)})


def missing(recorded: Mapping[str, str]) -> list[str]:
    """The recorded files that are no longer where they were."""
    return [name for name in recorded if not split_member(name)[0].exists()]


def _found(name: str, checksum: str, root: Path) -> tuple[str, str]:
    """Where a file lies now, or what is wrong."""
    differing = ""
    for place in _places(name, root):
        if not split_member(place)[0].is_file():
            continue
        if (now := hash_of(place)) == checksum:
            return place, ""
        differing = differing or (
            f"{name}: {place} has another content: its sha256 must be {checksum[:12]}…, but is "
            f"{now[:12]}…"
        )
    *_, last = _places(name, root)
    return "", differing or f"{name}: is not there, for example as {last}"


def _places(name: str, root: Path) -> Iterator[str]:
    """Where a file may lie: under each end of its path, the longest first."""
    archive, member = split_member(name)
    parts = archive.parts[1:] if archive.is_absolute() else archive.parts
    if ".." in parts:
        parts = parts[len(parts) - parts[::-1].index("..") :]
    for first in range(len(parts)):
        place = str(root.joinpath(*parts[first:]))
        yield f"{place}!{member}" if member else place


def _moved(value: Any, found: Mapping[str, str]) -> Any:
    """An option of [data]: a path, which may be a folder of recorded files, paths, or no path."""
    if isinstance(value, tuple):
        return tuple(_moved(one, found) for one in value)
    if not isinstance(value, Path):
        return value
    if str(value) in found:
        return Path(found[str(value)])
    inside = {name: place for name, place in found.items() if name.startswith(f"{value}/")}
    folders = set()
    for name, place in inside.items():
        rest = name.removeprefix(f"{value}/")
        if not place.endswith(f"/{rest}"):
            raise DataError(place, None, f"must lie in a folder like {value}, as {rest}.")
        folders.add(place.removesuffix(f"/{rest}"))
    if len(folders) > 1:
        listed = ", ".join(sorted(folders))
        raise DataError(value, None, f"its files must lie in one folder, but lie in {listed}.")
    return Path(folders.pop()) if folders else value
