"""Running a C++ compiler, for a bounded time and no longer than the process that asks for it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

COMPILERS = ("c++", "g++", "clang++")

# A compiler starts others (cc1plus, as, ld), which do not end when it does. So it runs in a process
# group of its own, beside a watcher that ends the whole group when the process that asked for it is
# gone, however that ended: then a pipe that only that process holds is closed, or, where a fork of
# it still holds the pipe, the watcher has another parent.
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
    sys.stderr.write(f"it ended with {code}")
sys.exit(1 if code else 0)
"""


class BuildError(Exception):
    """No compiler, or none that is content."""


def run(*command: str, seconds: float) -> str:
    """What a command has to say if it fails, else nothing.

    Raises:
        BuildError: it takes longer than this.
    """
    if not hasattr(os, "killpg"):  # a system without process groups
        return _alone(command, seconds)
    with tempfile.TemporaryFile() as said:
        try:
            watcher = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", WATCHER, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
        except OSError as error:
            return str(error)
        try:
            code = watcher.wait(seconds)
        except BaseException as error:  # an interrupt too
            _end(watcher)
            if isinstance(error, subprocess.TimeoutExpired):
                raise _late(command, seconds) from None
            raise
        assert watcher.stdin is not None
        watcher.stdin.close()
        said.seek(0)
        text = said.read().decode(errors="replace").strip()
    return (text or f"it ended with {code}") if code else ""


def _end(watcher: subprocess.Popen[bytes]) -> None:
    """End a process that nobody has waited for, and all of its group."""
    try:
        os.killpg(watcher.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it has ended, and is alone
        pass
    assert watcher.stdin is not None
    watcher.stdin.close()
    watcher.wait()


def _alone(command: tuple[str, ...], seconds: float) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise _late(command, seconds) from None
    except OSError as error:
        return str(error)
    return (done.stderr.strip() or f"it ended with {done.returncode}") if done.returncode else ""


def _late(command: tuple[str, ...], seconds: float) -> BuildError:
    return BuildError(f"{command[0]} did not end within {seconds:.0f} seconds")


def find() -> list[str]:
    """The words that call a compiler: those in CXX, or the first that there is.

    Raises:
        BuildError: there is none.
    """
    wanted = _asked()
    for words in (wanted, *([name] for name in COMPILERS)):
        if words and shutil.which(words[0]):
            return words
        if words and words is wanted:
            print(f"CXX asks for {words[0]!r}, which is not there", file=sys.stderr, flush=True)
    raise BuildError(f"no C++ compiler was found ({', '.join(COMPILERS)}, or the one in CXX)")


def _asked() -> list[str]:
    """The words of CXX, as a shell would read them."""
    text = os.environ.get("CXX", "")
    try:
        return shlex.split(text)
    except ValueError:  # a quotation mark that is not closed
        return text.split()
