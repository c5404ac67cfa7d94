"""Which compiler makes the kernels, which files are trusted, and the libraries of a wheel."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


COMPILERS = ("c++", "g++", "clang++")

# A compiler starts other processes (cc1plus, as, ld), which survive when the compiler is killed.
# So a watcher process starts the compiler in a new process group, and kills the group when the
# parent, the process that wants the library, has ended. The watcher notices this in one of two
# ways: its standard input, a pipe from the parent, is closed; or, where a fork of the parent still
# has the pipe open, its parent process id changes.
WATCHER = """
import os, select, signal, subprocess, sys

parent = os.getppid()
try:
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
except OSError as error:
    sys.exit(str(error))
while command.poll() is None:
    closed = select.select([0], [], [], 0.02)[0]
    if closed or os.getppid() != parent:
        os.killpg(0, signal.SIGKILL)
code = command.returncode
if code < 0:
    sys.stderr.write(f"exit code {code}")
sys.exit(1 if code else 0)
"""


class BuildError(Exception):
    """No compiler was found, or compiling failed."""


def run(*command: str, seconds: float) -> str:
    """Run a command. Returns "" if it succeeds, else its standard error or its exit code.

    seconds: the time limit.

    Raises:
        BuildError: the command did not end within the time limit.
    """
    if not hasattr(os, "killpg"):  # a system without process groups
        return _run_without_group(command, seconds)
    with tempfile.TemporaryFile() as errors:
        try:
            watcher = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", WATCHER, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            return str(error)
        try:
            code = watcher.wait(seconds)
        except BaseException as error:  # KeyboardInterrupt too
            _kill_group(watcher)
            if isinstance(error, subprocess.TimeoutExpired):
                raise _timeout_error(command, seconds) from None
            raise
        assert watcher.stdin is not None
        watcher.stdin.close()
        errors.seek(0)
        text = errors.read().decode(errors="replace").strip()
    return (text or f"exit code {code}") if code else ""


def _kill_group(watcher: subprocess.Popen[bytes]) -> None:
    """Kill the watcher and its whole process group, and wait for it."""
    try:
        os.killpg(watcher.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it has ended already
        pass
    assert watcher.stdin is not None
    watcher.stdin.close()
    watcher.wait()


def _run_without_group(command: tuple[str, ...], seconds: float) -> str:
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise _timeout_error(command, seconds) from None
    except OSError as error:
        return str(error)
    code = completed.returncode
    return (completed.stderr.strip() or f"exit code {code}") if code else ""


def _timeout_error(command: tuple[str, ...], seconds: float) -> BuildError:
    return BuildError(f"{command[0]} did not end within {seconds:.0f} seconds")


def find() -> list[str]:
    """The command of the compiler: that in the variable CXX, or the first of COMPILERS found.

    Raises:
        BuildError: no compiler was found.
    """
    from_cxx = _cxx_command()
    for command in (from_cxx, *([name] for name in COMPILERS)):
        if command and shutil.which(command[0]):
            return command
        if command and command is from_cxx:
            print(f"CXX names {command[0]!r}, which was not found", file=sys.stderr, flush=True)
    raise BuildError(f"no C++ compiler was found ({', '.join(COMPILERS)}, or the one in CXX)")


def _cxx_command() -> list[str]:
    """The command in the variable CXX, split as a shell splits it; [] if it is not set."""
    text = os.environ.get("CXX", "")
    try:
        return shlex.split(text)
    except ValueError:  # a quotation mark that is not closed
        return text.split()


FOLDER = Path(__file__).with_name("lib")


@dataclass(frozen=True)
class Level:
    """A level of processors: how its library is compiled, and the features that it needs.

    features: names of /proc/cpuinfo.
    """

    name: str
    flags: tuple[str, ...]
    features: frozenset[str]


AVX2 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"}

# By the machine's name, the fastest first. The sources distinguish these and no others.
LEVELS = {
    "x86_64": (
        Level(
            "avx512-bf16",
            ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"),
            AVX512 | {"avx512_bf16"},
        ),
        Level("avx512", ("-march=x86-64-v4", "-mavx512vnni"), AVX512),
        Level("avx2", ("-march=x86-64-v3",), AVX2),
        Level("sse2", ("-march=x86-64",), frozenset()),
    ),
    "aarch64": (Level("armv8", ("-march=armv8-a",), frozenset()),),
}


def features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The features that all processors of this machine have; none where they are not known."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    parts = (line.partition(":") for line in lines)
    processors = [
        frozenset(v.split()) for name, _, v in parts if name.strip() in ("flags", "Features")
    ]
    return frozenset.intersection(*processors) if processors else frozenset()


def levels_of(machine: str, known: frozenset[str]) -> list[Level]:
    """The levels that run on a processor with these features, the fastest first."""
    return [level for level in LEVELS.get(machine, ()) if level.features <= known]


def levels_here() -> list[Level]:
    """The levels that run on this machine, the fastest first."""
    if platform.system() != "Linux":
        return []
    return levels_of(platform.machine(), features())
