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
from dataclasses import dataclass
from pathlib import Path

GROUP_OR_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def distrust_reason(folder: Path) -> str:
    """Why files of a folder must not be loaded: another user could have written them. "" if they
    may be, or if there is no folder.
    """
    if not hasattr(os, "geteuid") or not folder.is_dir():
        return ""
    status = folder.stat()
    if status.st_uid not in (os.geteuid(), 0):
        return f"{folder} belongs to another user (uid {status.st_uid})"
    if status.st_mode & GROUP_OR_OTHERS_WRITE:
        return f"other users may write to {folder} (`chmod go-w {folder}` forbids it)"
    return ""


COMPILERS = ("c++", "g++", "clang++")


class BuildError(Exception):
    """No compiler was found, or compiling failed."""


def run(*command: str, seconds: float) -> str:
    """Run a command. Returns "" if it succeeds, else its standard error or its exit code.

    A compiler starts other processes, so its whole group is killed when it does not end.

    seconds: the time limit.

    Raises:
        BuildError: the command did not end within the time limit.
    """
    groups = hasattr(os, "killpg")
    null = subprocess.DEVNULL
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command, stdin=null, stdout=null, stderr=errors, start_new_session=groups
            )
        except OSError as error:
            return str(error)
        try:
            code = process.wait(seconds)
        except BaseException as error:  # KeyboardInterrupt too
            os.killpg(process.pid, signal.SIGKILL) if groups else process.kill()
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                message = f"{command[0]} did not end within {seconds:.0f} seconds"
                raise BuildError(message) from None
            raise
        errors.seek(0)
        text = errors.read().decode(errors="replace").strip()
    return (text or f"exit code {code}") if code else ""


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
