"""The kernels that a platform wheel brings, built for several levels of processors.

`make dist` builds one library for each level of LEVELS and puts them into the folder `lib` beside
this module; a checkout and the wheel for all systems have no such folder. The name of a library
has a hash of the sources and the flags that it was built with, so that one of other sources is not
found. The kernels use nothing of torch's C++ interface: one library fits every version of torch.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

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
