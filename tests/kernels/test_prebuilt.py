"""The kernels of a platform wheel: which library is loaded on which processor, and which never."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from regard.kernels import build

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import dist  # noqa: E402

# What Linux prints of these processors, less the features that play no role.
AVX2 = "fpu sse2 fma movbe xsave avx f16c abm bmi1 avx2 bmi2"
AVX512 = f"{AVX2} avx512f avx512dq avx512cd avx512bw avx512vl"
PROCESSORS = {
    "Sapphire Rapids": (f"{AVX512} avx512_bf16 avx512_vnni amx_tile", "avx512-bf16"),
    "Ice Lake": (f"{AVX512} avx512_vnni", "avx512"),
    "Skylake-X": (AVX512, "avx2"),  # the kernels need AVX-512's products of bytes
    "Zen 3": (AVX2, "avx2"),
    "Ivy Bridge": ("fpu sse2 avx f16c xsave", "sse2"),
}


def cpuinfo(folder: Path, *flags: str, name: str = "flags\t\t") -> Path:
    path = folder / "cpuinfo"
    path.write_text(
        "".join(f"processor\t: {i}\n{name}: {line}\n\n" for i, line in enumerate(flags))
    )
    return path


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_fastest_level_that_a_processor_has_comes_first(tmp_path, name):
    flags, level = PROCESSORS[name]
    known = build.features(cpuinfo(tmp_path, flags, flags))
    found = [one.name for one in build.levels_of("x86_64", known)]
    assert found[0] == level and found[-1] == "sse2"


def test_features_are_those_that_all_processors_have(tmp_path):
    assert build.features(cpuinfo(tmp_path, AVX512, AVX2)) == {*AVX2.split()}
    assert build.features(tmp_path / "none") == frozenset()
    arm = cpuinfo(tmp_path, "fp asimd", name="Features\t")
    assert build.features(arm) == {"fp", "asimd"}
    assert [level.name for level in build.levels_of("aarch64", frozenset())] == ["armv8"]
    assert not build.levels_of("riscv64", frozenset())


@pytest.mark.parametrize("level", build.LEVELS["aarch64"], ids=lambda level: level.name)
def test_the_kernels_are_valid_for_a_compiler_of_aarch64(level):
    cross = shutil.which("aarch64-linux-gnu-g++")
    if cross is None:
        pytest.skip("there is no aarch64-linux-gnu-g++ (package g++-aarch64-linux-gnu)")
    flags = *build.FLAGS, *level.flags, "-fsyntax-only"
    assert not build.compile_errors(cross, *flags, str(build.SOURCE))


@pytest.fixture
def wheel_folder(libraries, tmp_path, monkeypatch):
    """The folder of a wheel's kernels, where only the lowest level is; nothing is set up yet."""
    compiled = build.build((("-DPORTABLE", "-O1"),))  # which `libraries` has put into the cache
    level = build.LEVELS["x86_64"][-1]
    folder = tmp_path / "lib"
    folder.mkdir()
    monkeypatch.setattr(build, "WHEEL", folder)
    monkeypatch.setattr(build, "levels_here", lambda: [build.LEVELS["x86_64"][0], level])
    code = compiled.read_bytes()[: -build.SUM().digest_size]
    path = folder / build.prebuilt_name(level)
    path.write_bytes(code + build._checksum(path.name, code))
    for name in ("CXX", build.MORE_FLAGS):
        monkeypatch.delenv(name, raising=False)
    for name in ("_loaded", "_failure", "_path"):
        monkeypatch.setattr(build, name, None if name == "_loaded" else "")
    return folder


@pytest.fixture
def compiles(monkeypatch):
    """The calls of the compiler, which fails."""
    calls = []

    def fail(*given):
        calls.append(given)
        raise build.BuildError("no compiler")

    monkeypatch.setattr(build, "build", fail)
    return calls


def test_kernels_of_the_wheel_are_loaded_without_a_compiler(wheel_folder, compiles):
    assert build.setup() and not compiles
    (path,) = wheel_folder.iterdir()
    assert build.status() == f"loaded from {path}"


def test_kernels_of_other_sources_are_not_loaded(wheel_folder, compiles, tmp_path, monkeypatch):
    sources = shutil.copytree(build.SOURCES, tmp_path / "cpp")
    with (sources / "kernels.cpp").open("a") as file:
        file.write("// changed\n")
    monkeypatch.setattr(build, "SOURCES", sources)
    with pytest.warns(UserWarning, match="no compiler"):
        assert not build.setup()
    assert len(compiles) == 1


def test_damaged_kernels_of_the_wheel_are_not_loaded(wheel_folder, compiles, capsys):
    (path,) = wheel_folder.iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="no compiler"):
        assert not build.setup()
    assert f"{path} is damaged" in capsys.readouterr().err and len(compiles) == 1


@pytest.mark.parametrize("variable", ["CXX", "REGARD_CXXFLAGS"])
def test_a_variable_that_says_how_to_compile_comes_before_the_wheel(
    wheel_folder, compiles, monkeypatch, variable
):
    monkeypatch.setenv(variable, "-O1")
    with pytest.warns(UserWarning, match="no compiler"):
        assert not build.setup()
    assert len(compiles) == 1


def test_a_checkout_has_no_prebuilt_kernels_and_packs_none():
    assert not build.WHEEL.exists()
    assert ".so" not in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("asked", "tag"),
    [  # by `auditwheel show`
        (b"GLIBC_2.29 GLIBC_2.3 CXXABI_1.3.7 CXXABI_1.3.13", "manylinux_2_34_aarch64"),
        (b"GLIBC_2.29 GLIBC_2.4 CXXABI_1.3.11 CXXABI_1.3", "manylinux_2_29_aarch64"),
        (b"GLIBC_2.2.5", "manylinux_2_17_aarch64"),
    ],
)
def test_the_tag_is_of_the_oldest_systems_that_have_what_is_needed(tmp_path, asked, tag):
    (tmp_path / "library.so").write_bytes(asked)
    assert dist.platform_tag([tmp_path / "library.so"], "aarch64") == tag


def test_the_platform_wheel_has_a_library_of_each_level(tmp_path, monkeypatch):
    wheelfile = pytest.importorskip("wheel.wheelfile")
    pure = tmp_path / "regard-1-py3-none-any.whl"
    about = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with wheelfile.WheelFile(pure, "w") as file:  # which writes RECORD
        file.writestr("regard/kernels/__init__.py", "")
        file.writestr("regard-1.dist-info/METADATA", "Name: regard\nVersion: 1\n")
        file.writestr("regard-1.dist-info/WHEEL", about)

    def library(level, folder):  # instead of minutes of compiling
        path = folder / build.prebuilt_name(level)
        path.write_bytes(b"\0GLIBC_2.3\0GLIBC_2.29\0GLIBC_2.4\0")

    monkeypatch.setattr(build, "build_prebuilt", library)
    monkeypatch.setattr(dist.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(dist, "DIST", tmp_path)
    made = dist.build_platform(pure)
    assert made.name == "regard-1-py3-none-manylinux_2_29_x86_64.whl"
    with wheelfile.WheelFile(made) as file:  # which compares what it reads with RECORD
        names = {name for name in file.namelist() if file.read(name) and name.endswith(".so")}
        assert b"Root-Is-Purelib: false" in file.read("regard-1.dist-info/WHEEL")
    levels = build.LEVELS["x86_64"]
    assert names == {f"regard/kernels/lib/{build.prebuilt_name(level)}" for level in levels}
