"""Whether a file of machine code may be loaded: only where no other user can have written it.

A folder for such files, and each file, must belong to this user or to root, and only they may write
to it. Then nobody else can put another file in the place of one that was looked at. The folders
above it do not count: whoever may rename those can only put a folder of his own there, and that
does not belong to this user.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Untrusted(Exception):
    """Another user could have written a file."""


def doubt(folder: Path) -> str:
    """Why nothing in a folder may be loaded; nothing where it may, or where it is not there."""
    try:
        found = os.stat(folder)
    except OSError:
        return ""
    if not stat.S_ISDIR(found.st_mode):
        return ""
    return _of_another(str(folder), found) or _open_to_others(str(folder), found)


def close(folder: Path) -> bool:
    """Take from others the right to write to a folder of this user, and remove the libraries that
    are there. Gives whether that could be done.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, AttributeError):
        return False
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid():
            return False
        os.fchmod(handle, stat.S_IMODE(found.st_mode) & ~OTHERS)
        for name in os.listdir(handle):
            if name.endswith(".so"):
                os.unlink(name, dir_fd=handle)
    except OSError:
        return False
    finally:
        os.close(handle)
    return not doubt(folder)


def _of_another(name: str, found: os.stat_result) -> str:
    if not hasattr(os, "geteuid") or found.st_uid in (os.geteuid(), 0):
        return ""
    return f"{name} belongs to another user (number {found.st_uid})"


def _open_to_others(name: str, found: os.stat_result) -> str:
    if not hasattr(os, "geteuid") or not found.st_mode & OTHERS:
        return ""
    return f"other users may write to {name} (`chmod go-w {name}` changes that)"


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file that nobody else can have written.

    Raises:
        Untrusted: somebody could have.
        OSError: it cannot be read, or is a link.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    flags |= getattr(os, "O_NONBLOCK", 0)  # a pipe would have us wait
    with os.fdopen(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no file")
        if problem := _of_another(str(path), found) or _open_to_others(str(path), found):
            raise Untrusted(problem)
        yield file


@contextmanager
def held(folder: Path) -> Iterator[Path]:
    """A path to a folder that stays the same folder, whatever its name becomes, where the system
    has such paths. Another folder that meanwhile stands there is found out.

    Raises:
        Untrusted: another user may write to it.
    """
    place = Path("/proc/self/fd")
    if not place.is_dir():
        yield folder
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = os.fstat(handle)
        if problem := _of_another(str(folder), found) or _open_to_others(str(folder), found):
            raise Untrusted(problem)
        yield place / str(handle)
    finally:
        os.close(handle)
