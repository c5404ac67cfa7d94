"""Files that are written completely or not at all."""

import errno
import fcntl
import glob
import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from regard.errors import CheckpointError, ConfigError


def write_text(path: Path, text: str) -> None:
    """Write a small text file, completely or not at all.

    Raises:
        CheckpointError: it cannot be written; what was at `path` before is then untouched.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        sync(temporary)


def write_json(path: Path, value: object) -> None:
    """Write a small JSON file with one value a line, completely or not at all.

    Raises:
        CheckpointError: as `write_text`.
    """
    write_text(path, json.dumps(value, indent=1) + "\n")


@contextmanager
def replacing(path: Path, writer: str = "") -> Iterator[Path]:
    """The path of a temporary file that the body writes and syncs; it then replaces `path`.

    writer: what no other process is called that may write the same file at the same time.

    Raises:
        CheckpointError: writing failed; what was at `path` before is then untouched.
    """
    temporary = path.with_name(f".{path.name}{writer and '.'}{writer}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException as error:
        with suppress(OSError):  # a disk that is read-only also for what is not there
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise not_written(path, error) from error
        raise


@contextmanager
def creating(path: Path) -> Iterator[Path]:
    """The path of a file or folder that the body writes; it then becomes `path`, which is new.

    Of several processes that write the same `path` the first that ends keeps it. What a killed
    process of this machine has left of it is removed.

    Raises:
        CheckpointError: `path` is there already, or writing failed; nothing is left of it then.
    """
    check_new(path)
    prefix = f".{path.name}.{platform.node()}"
    temporary = path.with_name(f"{prefix}.{os.getpid()}.{token_hex(4)}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f"{glob.escape(prefix)}.*.writing"):
            if not _is_running(int(left.name.split(".")[-3])):
                _remove(left)
        yield temporary
        for file in [temporary, *temporary.rglob("*")]:
            sync(file)
        _become(temporary, path)
        sync(path.parent)
    except BaseException as error:
        with suppress(OSError):  # a path that cannot be, such as one below a file
            _remove(temporary)
        if isinstance(error, OSError):
            raise not_written(path, error) from error
        raise


def _is_running(process: int) -> bool:
    """Whether this machine has a process of this number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # that of another user
        pass
    return True


def _become(temporary: Path, path: Path) -> None:
    """Rename a file or folder, unless there is one of the new name."""
    if temporary.is_dir():
        check_new(path)
        temporary.rename(path)  # an error if a folder with files is there by now
        return
    try:
        rename_new(temporary, path)
    except FileExistsError:
        check_new(path)
        raise


def check_new(path: Path) -> None:
    """Check that there is no such file or folder.

    Raises:
        CheckpointError: there is.
    """
    if path.exists() or path.is_symlink():
        raise CheckpointError(f"{path} is there already. Choose another folder, or remove it.")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def rename_new(path: Path, new: Path) -> None:
    """Rename a file, unless there is a file of the new name.

    Where the file system has no links (exFAT, mounted buckets), a file of this name that another
    process makes at the same moment is replaced.

    Raises:
        FileExistsError: there is such a file.
    """
    try:
        os.link(path, new)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if new.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new)) from None
        os.rename(path, new)
    else:
        path.unlink()


@contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Lock a folder, which is made, for this process; the system unlocks it however that ends.

    what: what another process does where it holds the lock: "training in"

    Raises:
        ConfigError: another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(f"another process is {what} {folder}. Wait until it has ended.") from None
    except OSError:  # some network disks have no locks
        pass
    try:
        yield
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def not_written(path: Path, error: Exception) -> CheckpointError:
    """The error for a file or folder that cannot be written."""
    return CheckpointError(
        f"{path} could not be written: {error}. Nothing that was written before is lost; "
        "free some space or choose another disk."
    )
