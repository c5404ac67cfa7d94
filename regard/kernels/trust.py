"""Loads compiled code only from files that no other user can have written.

The folder and each file must belong to this user or to root, and must not be writable by the group
or by others. Then no other user can replace a file between its check and its loading. The owners of
the parent folders are not checked: a user who can rename a parent folder can only put a folder of
their own in its place, and that one belongs to another user and is rejected.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

GROUP_OR_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedFile(Exception):
    """Another user could have written this file or folder."""


def distrust_reason(folder: Path) -> str:
    """Why files of a folder must not be loaded; "" if they may be, or if there is no folder."""
    try:
        status = os.stat(folder)
    except OSError:
        return ""
    if not stat.S_ISDIR(status.st_mode):
        return ""
    return _problem(folder, status)


def make_private(folder: Path) -> bool:
    """Make a folder of this user writable by this user alone, and delete the libraries in it.

    Returns whether both succeeded.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, AttributeError):
        return False
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid():
            return False
        os.fchmod(handle, stat.S_IMODE(status.st_mode) & ~GROUP_OR_OTHERS_WRITE)
        for name in os.listdir(handle):
            if name.endswith(".so"):
                os.unlink(name, dir_fd=handle)
    except OSError:
        return False
    finally:
        os.close(handle)
    return not distrust_reason(folder)


def _problem(path: Path, status: os.stat_result) -> str:
    """Why a file or folder must not be trusted; "" if it may be."""
    if not hasattr(os, "geteuid"):
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user (uid {status.st_uid})"
    if status.st_mode & GROUP_OR_OTHERS_WRITE:
        return f"other users may write to {path} (`chmod go-w {path}` forbids it)"
    return ""


@contextmanager
def open_trusted(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading if no other user can have written it.

    Raises:
        UntrustedFile: another user could have written it.
        OSError: it cannot be read, is a symbolic link, or is not a regular file.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    flags |= getattr(os, "O_NONBLOCK", 0)  # opening a named pipe would wait for a writer
    with os.fdopen(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        if problem := _problem(path, status):
            raise UntrustedFile(problem)
        yield file


@contextmanager
def pinned(folder: Path) -> Iterator[Path]:
    """A path that keeps naming this folder, even if the folder is renamed or replaced meanwhile.

    It is a path in /proc/self/fd; on systems without /proc the folder's own path is returned.

    Raises:
        UntrustedFile: another user may write to it.
    """
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        yield folder
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        status = os.fstat(handle)
        if problem := _problem(folder, status):
            raise UntrustedFile(problem)
        yield descriptors / str(handle)
    finally:
        os.close(handle)
