"""The compiled kernels: `setup` loads those of the wheel, or compiles them with a C++ compiler.

Kernels of the wheel are used unless CXX or REGARD_CXXFLAGS is set. Whoever may write to them may
write to the Python code beside them, so they are checked for damage alone.

A built library is stored in the user's cache (XDG_CACHE_HOME). Its name is a hash of the source,
the flags, the compiler named by CXX and the processor, so that machines which share a home do not
share machine code. From a folder that another user may write to nothing is loaded.
"""

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from regard.errors import RegardError, warn
from regard.kernels.signatures import declare

SOURCES = Path(__file__).with_name("cpp")
SOURCE = SOURCES / "kernels.cpp"
FLAGS = (
    *("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd"),
    *("-shared", "-fPIC"),
)
# Everything that this processor can do, then what every processor of its kind can.
KINDS = (("-march=native",), ("-mcpu=native",), ())
MORE_FLAGS = "REGARD_CXXFLAGS"  # further flags, such as those of a sanitizer
SECONDS = 300  # for a compiler that hangs

COMPILERS = ("c++", "g++", "clang++")
WHEEL = Path(__file__).with_name("lib")  # where the kernels of a wheel lie
SUM = hashlib.sha256
GROUP_OR_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

TOLD = "compiling kernels for this processor: once, for some seconds"
SLOWER = (
    "Without compiled kernels, decoding and encoding are slower (quantized weights save memory, "
    "but are slower than float32 ones), and so is training: norms, dropout, activations, attention "
    "and LSTMs in bfloat16."
)
INSTALL = (
    "Install a C++ compiler (on Debian and Ubuntu the package g++, on Fedora gcc-c++, on macOS "
    "`xcode-select --install`), or name one in CXX."
)

_lock = threading.Lock()


_loaded: ctypes.CDLL | None = None
_path = ""  # where they lie
_failure = ""  # why there are none


class BuildError(Exception):
    """No compiler was found, or compiling failed."""


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


def setup() -> bool:
    """Load the kernels, those of the wheel or of the cache, or compile them; whether there are any.

    Where they cannot be built, one warning says why.
    """
    global _loaded, _path, _failure
    with _lock:  # two threads shall not build the same
        if _loaded is None and not _failure:
            try:
                _loaded, _path = _of_wheel() or (load(path := build()), str(path))
            except (BuildError, OSError, ValueError) as error:
                _failure = f"The kernels could not be compiled: {error}"
                warn(f"{SLOWER} {INSTALL} {_failure}")
    return _loaded is not None


def _of_wheel() -> tuple[ctypes.CDLL, str] | None:
    """The library of the wheel for the best level that runs here, and its path.

    None if there is none, or the environment says how to compile.
    """
    if not WHEEL.is_dir() or any(map(os.environ.get, ("CXX", MORE_FLAGS))):
        return None
    for level in levels_here():
        path = WHEEL / prebuilt_name(level)
        try:
            loaded = _prepared(path)
            if not loaded.regard_check():
                return loaded, str(path)
        except OSError:  # it is absent or cannot be loaded
            continue
    _print(
        f"{WHEEL} has no kernels of this version for this processor "
        f"({platform.machine()}): they are compiled."
    )
    return None


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


def build(kinds: tuple[tuple[str, ...], ...] = KINDS) -> Path:
    """The compiled library, from the cache or built now.

    kinds: further flags, tried one after the other until what they give runs on this machine.

    Raises:
        BuildError: there is no compiler, it fails with all flags, or no folder can be written to.
        OSError: there is no folder to write to.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    folder = folder / "regard" / "kernels"
    target = folder / f"kernels-{_name(kinds)}.so"
    untrusted = distrust_reason(folder)
    if not untrusted and target.is_file():
        return target
    command = find_compiler()
    if problem := untrusted or _problem(folder):
        raise BuildError(f"{problem}. Set XDG_CACHE_HOME to a folder that can keep kernels.")
    _print(TOLD)
    errors = ""
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as workspace:
        built = Path(workspace, "kernels.so")
        for kind in kinds:
            flags = *FLAGS, *kind, *os.environ.get(MORE_FLAGS, "").split()
            errors = compile_errors(*command, *flags, str(SOURCE), "-o", str(built))
            # In a process of its own: an instruction that the processor lacks would end this one.
            errors = errors or compile_errors(sys.executable, "-I", "-S", "-c", CHECK, str(built))
            if not errors:
                target = folder / target.name
                os.replace(built, target)  # atomic, also when others build
                return target
    raise BuildError(f"{' '.join(command)} failed: {errors:.200}")


def build_prebuilt(level: Level, folder: Path) -> Path:
    """Compile the library of a level into a folder, as a wheel brings it.

    Raises:
        BuildError: there is no compiler, or it fails.
        OSError: the folder cannot be written to.
    """
    path = folder / prebuilt_name(level)
    command = *find_compiler(), *FLAGS, *level.flags, "-s"  # without symbols of no use at run time
    if errors := compile_errors(*command, str(SOURCE), "-o", str(path)):
        raise BuildError(f"{' '.join(command)} failed: {errors:.200}")
    path.chmod(0o644)
    return path


def compile_errors(*command: str) -> str:
    """Run a compiler, or what it has built: "" if it succeeds, else its first error."""
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=SECONDS,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return str(error)
    except subprocess.TimeoutExpired:
        return f"it did not end within {SECONDS} seconds"
    if not run.returncode:
        return ""
    lines = run.stderr.strip().splitlines() or [f"exit code {run.returncode}"]
    return next((line for line in lines if re.search(r"\berror\b\s*:", line)), lines[0])


def find_compiler() -> list[str]:
    """The command in the variable CXX, split as a shell splits it, or the first of COMPILERS.

    Raises:
        BuildError: no compiler was found.
        ValueError: a quotation mark in CXX is not closed.
    """
    commands = shlex.split(os.environ.get("CXX", "")), *([name] for name in COMPILERS)
    for command in commands:
        if command and shutil.which(command[0]):
            return command
    raise BuildError(f"no C++ compiler was found ({', '.join(COMPILERS)}, or the one in CXX)")


def _name(kinds: tuple[tuple[str, ...], ...]) -> str:
    """The name of a build: a hash of the sources, the flags, the compiler and the processor."""
    variables = os.environ.get("CXX", ""), os.environ.get(MORE_FLAGS, "")
    return SUM(repr((_sources(), FLAGS, kinds, variables, _processor())).encode()).hexdigest()[:20]


def prebuilt_name(level: Level) -> str:
    """The name of the library of a level in the wheel: the level, a hash of sources and flags."""
    hashed = SUM(repr((_sources(), FLAGS, level.flags)).encode()).hexdigest()[:20]
    return f"kernels-{level.name}-{hashed}.so"


def _sources() -> list[bytes]:
    return [path.read_bytes() for path in sorted(SOURCES.iterdir())]


def load(path: Path) -> ctypes.CDLL:
    """A compiled library with the types of its functions.

    Raises:
        BuildError: another user could have written it.
        OSError: it cannot be loaded.
    """
    if untrusted := distrust_reason(path.parent):
        raise BuildError(untrusted)
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


def _problem(folder: Path) -> str:
    """Why nothing can be built in a folder; it is made if need be."""
    if not folder.is_absolute():  # there is no home, or one that depends on where we are
        return f"{folder} is no folder for a cache"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        return str(error)
    return "" if os.access(folder, os.W_OK) else f"{folder} cannot be written to"


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
