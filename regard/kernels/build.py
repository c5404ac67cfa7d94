"""The compiled kernels: `setup` loads those of the wheel, or compiles them with a C++ compiler.

Kernels of the wheel (see compiler.py) are used unless CXX or REGARD_CXXFLAGS is set. Whoever may
write to them may write to the Python code beside them, so they are checked for damage alone.

A built library is stored in the user's cache (XDG_CACHE_HOME). Its name is a hash of the source,
the flags, the compiler named by CXX and the processor, so that machines which share a home do not
share machine code. Each file ends with a checksum of its name and content, because loading a
damaged library can end the process. From a folder that another user may write to nothing is loaded.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
import threading
import time
import warnings
from functools import partial
from pathlib import Path

from regard.errors import RegardError
from regard.kernels import compiler
from regard.kernels.compiler import BuildError as BuildError
from regard.kernels.signatures import declare

FOLDER = Path(__file__).with_name("cpp")
SOURCE = FOLDER / "kernels.cpp"
FLAGS = (
    *("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd"),
    *("-shared", "-fPIC"),
)
# Everything that this processor can do, then what every processor of its kind can.
KINDS = (("-march=native",), ("-mcpu=native",), ())
MORE_FLAGS = "REGARD_CXXFLAGS"  # further flags, such as those of a sanitizer
SECONDS = 300  # for a compiler that hangs

FREE_BYTES = 4 << 20  # that the disk of a folder must have
UNFINISHED = "build-"
SUM = hashlib.sha256

TOLD = "compiling kernels for this processor: once, for some seconds"
SLOWER = (
    "Without compiled kernels, decoding and encoding are slower (quantized weights save memory, "
    "but are slower than float32 ones), and so is training: norms, dropout, activations, attention "
    "and LSTMs in bfloat16, and Adam."
)
INSTALL = (
    "Install a C++ compiler (on Debian and Ubuntu the package g++, on Fedora gcc-c++, on macOS "
    "`xcode-select --install`), or name one in CXX."
)

_lock = threading.Lock()


_loaded: ctypes.CDLL | None = None
_path = ""  # where they lie
_failure = ""  # why there are none


def setup() -> bool:
    """Load the kernels, those of the wheel or of the cache, or compile them; whether there are any.

    Where they cannot be built, one warning says why.
    """
    global _loaded, _path, _failure
    with _lock:  # two threads shall not build the same
        if _loaded is None and not _failure:
            try:
                _loaded, _path = _of_wheel() or _of_cache()
            except (BuildError, OSError) as error:
                _failure = f"The kernels could not be compiled: {error}"
                warnings.warn(f"{SLOWER} {INSTALL} {_failure}", stacklevel=3)
    return _loaded is not None


def _of_wheel() -> tuple[ctypes.CDLL, str] | None:
    """The library of the wheel for the best level that runs here, and its path.

    None if there is none, or the environment says how to compile.
    """
    if not compiler.FOLDER.is_dir() or any(map(os.environ.get, ("CXX", MORE_FLAGS))):
        return None
    for level in compiler.levels_here():
        path = compiler.FOLDER / prebuilt_name(level)
        try:
            if _has_checksum(path.name, path.read_bytes()):
                loaded = _prepared(path)
                if not loaded.regard_check():
                    return loaded, str(path)
        except OSError:  # it is absent or cannot be loaded
            continue
        _print(f"{path} is damaged and is not used: install the wheel again.")
    _print(
        f"{compiler.FOLDER} has no kernels of this version for this processor "
        f"({platform.machine()}): they are compiled."
    )
    return None


def _of_cache() -> tuple[ctypes.CDLL, str]:
    """The library that is compiled for this processor, and its path."""
    path = build()
    return load(path), str(path)


def kernels() -> ctypes.CDLL | None:
    """The compiled kernels, where `setup` has loaded them; else None. Compiles nothing."""
    return _loaded


def status() -> str:
    """The library that is loaded, or why none is."""
    return _failure or ("not loaded" if _loaded is None else f"loaded from {_path}")


def library() -> ctypes.CDLL:
    """The compiled kernels.

    Raises:
        RegardError: `setup` has not loaded them.
    """
    loaded = kernels()
    if loaded is None:
        raise RegardError("The compiled kernels are not loaded: `regard.ops.load_kernels` does it.")
    return loaded


def available() -> bool:
    """Whether `setup` has loaded kernels."""
    return kernels() is not None


def build(kinds: tuple[tuple[str, ...], ...] = KINDS, folder: Path | None = None) -> Path:
    """The compiled library, from the cache or built now.

    kinds: further flags, tried one after the other until what they give runs on this machine.

    Raises:
        BuildError: there is no compiler, or it fails with all flags.
        OSError: there is no folder to write to.
    """
    folder = folder or _cache()
    target = folder / f"kernels-{_name(kinds)}.so"
    untrusted = compiler.distrust_reason(folder)
    if not untrusted and _is_whole(target) and _executes(folder):
        return target
    command = compiler.find()
    if problem := untrusted or _problem(folder):
        folder = _of_this_process(problem)
    print(TOLD, file=sys.stderr, flush=True)
    errors = ""
    _remove_leftovers(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=UNFINISHED) as workspace:
        built = Path(workspace, "kernels.so")
        for kind in kinds:
            flags = *FLAGS, *kind, *os.environ.get(MORE_FLAGS, "").split()
            errors = compiler.run(*command, *flags, str(SOURCE), "-o", str(built), seconds=SECONDS)
            # In a process of its own: an instruction that the processor lacks would end this one.
            check = sys.executable, "-I", "-S", "-c", CHECK, str(built)
            errors = errors or compiler.run(*check, seconds=SECONDS)
            if not errors:
                target = folder / target.name
                code = built.read_bytes()
                built.write_bytes(code + _checksum(target.name, code))
                built.chmod(0o644)
                os.replace(built, target)  # atomic, also when others build
                return target
    raise BuildError(f"{' '.join(command)} failed: {_error_in(errors):.200}")


def build_prebuilt(level: compiler.Level, folder: Path) -> Path:
    """Compile the library of a level into a folder, as a wheel brings it.

    Raises:
        BuildError: there is no compiler, or it fails.
        OSError: the folder cannot be written to.
    """
    path = folder / prebuilt_name(level)
    command = *compiler.find(), *FLAGS, *level.flags, "-s"  # without symbols of no use at run time
    if errors := compiler.run(*command, str(SOURCE), "-o", str(path), seconds=SECONDS):
        raise BuildError(f"{' '.join(command)} failed: {_error_in(errors):.200}")
    code = path.read_bytes()
    path.write_bytes(code + _checksum(path.name, code))
    path.chmod(0o644)
    return path


def _error_in(output: str) -> str:
    """The first line of a compiler's output that reports an error; paths may contain such words."""
    lines = output.strip().splitlines()
    for pattern in (r"\berror\b\s*:", "error|fail"):
        if matching := [line for line in lines if re.search(pattern, line, re.IGNORECASE)]:
            return matching[0]
    return lines[0]


def _name(kinds: tuple[tuple[str, ...], ...]) -> str:
    """The name of a build: a hash of the sources, the flags, the compiler and the processor."""
    variables = os.environ.get("CXX", ""), os.environ.get(MORE_FLAGS, "")
    return SUM(repr((_sources(), FLAGS, kinds, variables, _processor())).encode()).hexdigest()[:20]


def prebuilt_name(level: compiler.Level) -> str:
    """The name of the library of a level in the wheel: the level, a hash of sources and flags."""
    hashed = SUM(repr((_sources(), FLAGS, level.flags)).encode()).hexdigest()[:20]
    return f"kernels-{level.name}-{hashed}.so"


def _sources() -> list[bytes]:
    return [path.read_bytes() for path in sorted(FOLDER.iterdir())]


def _checksum(name: str, code: bytes) -> bytes:
    return SUM(name.encode() + code).digest()


def _is_whole(path: Path) -> bool:
    """Whether there is a library with its checksum."""
    try:
        return path.is_file() and _has_checksum(path.name, path.read_bytes())
    except OSError:
        return False


def _has_checksum(name: str, written: bytes) -> bool:
    size = SUM().digest_size
    return _checksum(name, written[:-size]) == written[-size:]


def _remove_leftovers(folder: Path) -> None:
    """Remove the temporary folders that killed builds have left."""
    for place in folder.glob(f"{UNFINISHED}*"):
        try:
            if time.time() - place.stat().st_mtime > 4 * SECONDS:
                shutil.rmtree(place, ignore_errors=True)
        except OSError:  # another process has removed it
            pass


def load(path: Path) -> ctypes.CDLL:
    """A compiled library with the types of its functions.

    Raises:
        BuildError: it is damaged, or another user could have written it.
        OSError: it cannot be loaded.
    """
    if untrusted := compiler.distrust_reason(path.parent):
        raise BuildError(untrusted)
    if not _is_whole(path):
        raise BuildError(f"{path} is damaged")
    return _prepared(path)


def _prepared(path: Path) -> ctypes.CDLL:
    """A library with the types of its functions and the OpenMP runtime that torch has loaded."""
    library = ctypes.CDLL(str(path))
    declare(library)
    runtime = _openmp()
    if runtime is not None:
        functions = (runtime.GOMP_parallel, runtime.omp_get_thread_num, runtime.omp_get_num_threads)
        library.regard_threads(*(ctypes.cast(function, ctypes.c_void_p) for function in functions))
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
        paths = {Path(name) for name in re.findall(r"/.*/lib(?:gomp|iomp|omp)\S*", maps)}
    except OSError:
        paths = set(folder.glob("lib*omp*"))
    # Other packages may have brought one of their own.
    for path in sorted(paths, key=lambda path: folder not in path.parents):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "GOMP_parallel"):
            return library
    return None


CHECK = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).regard_check())"


def _processor() -> str:
    """What tells one kind of processor from another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    facts = {line for line in lines if line.startswith(("flags", "Features", "model name"))}
    return repr((platform.machine(), platform.processor(), sorted(facts)))


def _cache() -> Path:
    """The folder for compiled libraries, if it can be used."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root, "regard", "kernels")


def _problem(folder: Path) -> str:
    """Why nothing can be built in a folder; it is made if need be."""
    if not folder.is_absolute():  # there is no home, or one that depends on where we are
        return f"{folder} is no folder for a cache"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        return str(error)
    if untrusted := compiler.distrust_reason(folder):  # another user has made it meanwhile
        return untrusted
    if not os.access(folder, os.W_OK):
        return f"{folder} cannot be written to"
    if not _executes(folder):
        return f"programs may not run from {folder}"
    return "" if shutil.disk_usage(folder).free >= FREE_BYTES else f"the disk of {folder} is full"


def _executes(folder: Path) -> bool:
    """Whether what lies in a folder may be loaded."""
    return not hasattr(os, "ST_NOEXEC") or not os.statvfs(folder).f_flag & os.ST_NOEXEC


def _of_this_process(problem: str) -> Path:
    """A folder that goes with this process."""
    _print(
        f"{problem}: kernels are compiled for this process alone, and again for the next. "
        "Set XDG_CACHE_HOME to a folder that can keep them."
    )
    folder = Path(tempfile.mkdtemp(prefix="regard-kernels-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
