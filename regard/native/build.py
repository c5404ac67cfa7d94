"""The compiled kernels: built where a C++ compiler is, when they are first needed, and kept.

What was built lies in the user's cache (XDG_CACHE_HOME), under a name made of the source, the
flags and the processor, so that machines which share a home do not share machine code. At its end
stands its own sum: a file that is damaged would end the process that loads it.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from functools import cache, partial
from pathlib import Path

FOLDER = Path(__file__).with_name("cpp")
SOURCE = FOLDER / "kernels.cpp"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    *("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd"),
    *("-shared", "-fPIC"),
)
# Everything that this processor can do, then what every processor of its kind can.
KINDS = (("-march=native",), ("-mcpu=native",), ())
SECONDS = 300  # for a compiler that hangs

ROOM = 4 << 20  # bytes that a folder must have left
SUM = hashlib.sha256

TOLD = "compiling kernels for this processor: once, for some seconds"
SLOWER = (
    "Without compiled kernels, decoding and encoding are slower, since models keep their wide "
    "weights whatever `weights` says, and so is training: norms, dropout, activations, attention "
    "and LSTMs in bfloat16, and Adam."
)
INSTALL = (
    "Install a C++ compiler (on Debian and Ubuntu the package g++, on Fedora gcc-c++, on macOS "
    "`xcode-select --install`), or name one in CXX."
)

_lock = threading.Lock()


def kernels() -> ctypes.CDLL | None:
    """The compiled kernels; None, and one warning, where they cannot be built."""
    with _lock:  # two threads shall not build the same
        return _kernels()


def loaded() -> ctypes.CDLL | None:
    """The compiled kernels, where somebody has needed them already; None elsewhere."""
    return kernels() if _kernels.cache_info().currsize else None


def available() -> bool:
    """Whether there are compiled kernels on this machine; builds them if need be."""
    return kernels() is not None


class BuildError(Exception):
    """No compiler, or none that is content."""


@cache
def _kernels() -> ctypes.CDLL | None:
    try:
        return load(build())
    except (BuildError, OSError) as error:
        warnings.warn(
            f"{SLOWER} {INSTALL} The kernels could not be compiled: {error}",
            stacklevel=2,
        )
        return None


def build(kinds: tuple[tuple[str, ...], ...] = KINDS, folder: Path | None = None) -> Path:
    """The compiled library, from the cache or built now.

    kinds: further flags, tried one after the other until what they give runs on this machine.

    Raises:
        BuildError: there is no compiler, or it fails with all flags.
        OSError: there is no folder to write to.
    """
    text = [path.read_bytes() for path in sorted(FOLDER.iterdir())]
    name = SUM(repr((text, FLAGS, kinds, _processor())).encode()).hexdigest()[:20]
    folder = folder or _cache()
    target = folder / f"kernels-{name}.so"
    if _is_whole(target) and _executes(folder):
        return target
    compiler = _compiler()
    if problem := _problem(folder):
        folder = _of_this_process(problem)
    print(TOLD, file=sys.stderr, flush=True)
    said = ""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        made = Path(place, "kernels.so")
        for kind in kinds:
            said = _run(*compiler, *FLAGS, *kind, str(SOURCE), "-o", str(made))
            # In a process of its own: an instruction that the processor lacks would end this one.
            said = said or _run(sys.executable, "-I", "-S", "-c", CHECK, str(made))
            if not said:
                code = made.read_bytes()
                made.write_bytes(code + SUM(code).digest())
                target = folder / target.name
                os.replace(made, target)  # whole or not at all, whoever else builds
                return target
    lines = said.strip().splitlines()
    telling = [line for line in lines if re.search("error|fail", line, re.IGNORECASE)]
    raise BuildError(f"{' '.join(compiler)} failed: {(telling or lines)[0]:.200}")


def _is_whole(path: Path) -> bool:
    """Whether what was built is there as it was written."""
    try:
        written = path.read_bytes()
    except OSError:
        return False
    size = SUM().digest_size
    return SUM(written[:-size]).digest() == written[-size:]


def load(path: Path) -> ctypes.CDLL:
    """A compiled library with the types of its functions."""
    library = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.regard_linear.argtypes = [
        *(number, number, number, pointer, pointer, pointer),  # the matrix
        *(pointer, number, pointer, number),
    ]
    library.regard_linear.restype = None
    library.regard_run.argtypes = [
        *(pointer, pointer, pointer, number, number, pointer, pointer, pointer, number)
    ]
    library.regard_run.restype = number
    library.regard_run_leading.argtypes = [
        *(pointer, pointer, number, number, pointer, pointer, pointer),
        *(number, pointer, pointer, number),
    ]
    library.regard_run_leading.restype = number
    library.regard_beams.argtypes = [pointer] * 4 + [number] * 4
    library.regard_beams.restype = number
    library.regard_encode.argtypes = [pointer] * 5 + [number, number]
    library.regard_encode.restype = None
    library.regard_recur.argtypes = [
        *(number, number, number, number, pointer, pointer, pointer),  # the cell, and the matrix
        *(pointer, number, number, pointer, pointer, pointer, number),
    ]
    library.regard_recur.restype = None
    library.regard_lines.argtypes = [
        *(number, number, number, pointer, pointer),  # the matrix
        *(pointer, number, pointer),
    ]
    library.regard_lines.restype = number
    library.regard_best.argtypes = [pointer, number, number, pointer, pointer, number]
    library.regard_best.restype = None
    library.regard_surprise.argtypes = [pointer, number, number, pointer, pointer, number]
    library.regard_surprise.restype = None
    library.regard_leading.argtypes = [
        *(pointer, number, number, number),
        *(pointer, pointer, number),
    ]
    library.regard_leading.restype = number
    library.regard_threads.argtypes = [pointer, pointer, pointer]
    library.regard_threads.restype = None
    runtime = _openmp()
    if runtime is not None:
        functions = (runtime.GOMP_parallel, runtime.omp_get_thread_num, runtime.omp_get_num_threads)
        library.regard_threads(*(ctypes.cast(function, pointer) for function in functions))
        # A forked process has the runtime's tables of threads, but none of the threads.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=partial(library.regard_threads, None, None, None))
    return library


def _openmp() -> ctypes.CDLL | None:
    """The OpenMP runtime that torch has loaded; None where it cannot be found."""
    import torch

    folder = Path(torch.__file__).parent / "lib"
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        found = {Path(name) for name in re.findall(r"/.*/lib(?:gomp|iomp|omp)\S*", maps)}
    except OSError:
        found = set(folder.glob("lib*omp*"))
    # Other packages may have brought one of their own.
    for path in sorted(found, key=lambda path: folder not in path.parents):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "GOMP_parallel"):
            return library
    return None


CHECK = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).regard_check())"


def _run(*command: str) -> str:
    """What a command has to say if it fails, else nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip() or f"it ended with {done.returncode}") if done.returncode else ""


def _compiler() -> list[str]:
    """The words that call it."""
    wanted = os.environ.get("CXX", "").split()
    for words in (wanted, *([name] for name in COMPILERS)):
        if words and shutil.which(words[0]):
            return words
        if words and words is wanted:
            print(f"CXX asks for {words[0]!r}, which is not there", file=sys.stderr, flush=True)
    raise BuildError(f"no C++ compiler was found ({', '.join(COMPILERS)}, or the one in CXX)")


def _processor() -> str:
    """What tells one kind of processor from another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    known = {line for line in lines if line.startswith(("flags", "Features", "model name"))}
    return repr((platform.machine(), platform.processor(), sorted(known)))


def _cache() -> Path:
    """Where what is built is kept, if it can be."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root, "regard", "native")


def _problem(folder: Path) -> str:
    """Why nothing can be built in a folder; it is made if need be."""
    if not folder.is_absolute():  # there is no home, or one that depends on where we are
        return f"{folder} is no folder for a cache"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return str(error)
    if not os.access(folder, os.W_OK):
        return f"{folder} cannot be written to"
    if not _executes(folder):
        return f"programs may not run from {folder}"
    return "" if shutil.disk_usage(folder).free >= ROOM else f"the disk of {folder} is full"


def _executes(folder: Path) -> bool:
    """Whether what lies in a folder may be loaded."""
    return not hasattr(os, "ST_NOEXEC") or not os.statvfs(folder).f_flag & os.ST_NOEXEC


def _of_this_process(problem: str) -> Path:
    """A folder that goes with this process."""
    print(
        f"{problem}: kernels are compiled for this process alone, and again for the next. "
        "Set XDG_CACHE_HOME to a folder that can keep them.",
        file=sys.stderr,
        flush=True,
    )
    folder = Path(tempfile.mkdtemp(prefix="regard-native-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
