"""The machine: what it is, and its ceilings, which no program can pass."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

PEERS = (
    "torch",
    "transformers",
    "tokenizers",
    "sentence-transformers",
    "ctranslate2",
    "onnxruntime",
    "llama_cpp_python",
)


def described(threads: int) -> dict[str, Any]:
    """The processor and the versions of all that takes part."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "python": platform.python_version(),
        **{name: version for name in ("regard", *PEERS) if (version := _version(name))},
    }


def processor() -> str:
    """Its name and what it can multiply."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    about = dict(line.split(":", 1) for line in lines if ":" in line)
    about = {name.strip(): value.strip() for name, value in about.items()}
    kinds = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
    flags = [kind for kind in kinds if kind in about.get("flags", "").split()]
    return " ".join([about.get("model name", platform.processor()), f"({', '.join(flags)})"])


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@contextmanager
def load(count: int) -> Iterator[None]:
    """So many other programs meanwhile, each of which reads memory on one core without a pause."""
    program = [sys.executable, "-c", _READS_MEMORY]
    running = [subprocess.Popen(program) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


_READS_MEMORY = """
import ctypes, os
ctypes.CDLL(None).prctl(1, 9)  # ends with its parent
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy
numbers = numpy.ones(2**25)
while True:
    numbers.sum()
"""


class Ceilings:
    """A condition that measures them: the best of several tries of each."""

    def __init__(self, threads: int, megabytes: int = 512, size: int = 2048):
        import torch

        torch.set_num_threads(threads)
        self.bytes, self.size = megabytes * 2**20, size

    def turn(self) -> dict[str, float]:
        """GFLOP/s of products, GB/s of reading and of copying."""
        import torch

        found = {}
        for kind in ("float32", "bfloat16"):
            found[f"{kind} GFLOP/s"] = _rate(self._product(getattr(torch, kind)), 2 * self.size**3)
        found["int8 GOP/s"] = _rate(self._int8(), 2 * self.size**3)
        source = torch.ones(self.bytes // 8, dtype=torch.int64)
        found["read GB/s"] = _reading(source)
        # As much as a small model's weights, again and again: caches hold a part of it.
        found["read 128 MB again GB/s"] = _reading(source[: 2**24])
        target = torch.empty_like(source)
        found["copy GB/s"] = _rate(lambda: target.copy_(source), 2 * source.nbytes)
        return found

    def _product(self, kind: Any) -> Callable[[], object]:
        """The faster of the two libraries that torch carries."""
        import torch

        a, b = (torch.randn(self.size, self.size).to(kind) for _ in range(2))
        if kind == torch.float32:
            packed = b.t().contiguous()
            ways = [
                lambda: a @ b,
                lambda: torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], ""),
            ]
            return min(ways, key=_seconds)
        return lambda: a @ b

    def _int8(self) -> Callable[[], object]:
        import torch

        a, b = (torch.randint(-99, 99, (self.size, self.size), dtype=torch.int8) for _ in range(2))
        return lambda: torch._int_mm(a, b)


def _reading(source: Any) -> float:
    """GB/s of adding up int64s: by a compiled loop where there is a compiler, else by torch."""
    loop = _read_loop()
    add: Callable[[], object] = source.sum
    if loop is not None:
        add = lambda: loop(source.data_ptr(), source.numel())  # noqa: E731
    return _rate(add, source.nbytes)


@cache
def _read_loop() -> Any:
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        return None
    flags = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "read.so")
        source = Path(__file__).with_name("read.cpp")
        done = subprocess.run([compiler, *flags, str(source), "-o", str(made)], check=False)
        if done.returncode:
            return None
        loop = ctypes.CDLL(str(made)).read_all
    loop.argtypes, loop.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_uint64
    return loop


def _rate(run: Callable[[], object], amount: float) -> float:
    return amount / _seconds(run) / 1e9


def _seconds(run: Callable[[], object], least: float = 0.5) -> float:
    """The best of as many tries as fit in `least` seconds, three at least."""
    run()
    best, began, tries = float("inf"), time.perf_counter(), 0
    while tries < 3 or time.perf_counter() - began < least:
        start = time.perf_counter()
        run()
        best, tries = min(best, time.perf_counter() - start), tries + 1
    return best
