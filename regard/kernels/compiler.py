"""Runs a C++ compiler with a time limit, and kills it when the process that started it ends."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

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
