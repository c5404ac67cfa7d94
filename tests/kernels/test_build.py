"""Kernels are compiled where they run, or come as wheels."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path

import pytest

from regard.kernels import build

NO_FLAGS = ((),)
POSIX = pytest.mark.skipif(os.name != "posix", reason="owners and signals are POSIX's")


@pytest.fixture
def small_library(tmp_path, monkeypatch):
    """A small library in the path of the kernels; the cache is `tmp_path`/cache."""
    source = tmp_path / "small.c++"
    source.write_text('extern "C" int regard_check() { return 0; }')
    monkeypatch.setattr(build, "SOURCE", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    try:
        build.find_compiler()
    except build.BuildError as error:
        pytest.skip(str(error))
    return tmp_path / "cache" / "regard" / "kernels"


@pytest.fixture
def not_set_up(monkeypatch):
    """The state of a process that has not set up the kernels yet."""
    monkeypatch.setattr(build, "_loaded", None)
    monkeypatch.setattr(build, "_failure", "")


# ---- other users


@POSIX
@pytest.mark.parametrize("mode", [0o1777, 0o775])
def test_nothing_is_loaded_from_a_cache_that_others_may_write_to(small_library, mode):
    path = build.build(NO_FLAGS)
    small_library.chmod(mode)
    with pytest.raises(build.BuildError, match=f"other users may write to {small_library}"):
        build.load(path)
    with pytest.raises(build.BuildError, match=f"`chmod go-w {small_library}` forbids it"):
        build.build(NO_FLAGS)


@POSIX
def test_a_cache_of_another_user_is_not_used(small_library, monkeypatch):
    path = build.build(NO_FLAGS)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:  # whom everybody trusts
        os.chown(small_library, 4321, -1)
    with pytest.raises(build.BuildError, match="belongs to another user"):
        build.load(path)


# ---- compilers


@POSIX
def test_a_compiler_that_hangs_is_stopped_and_named_in_a_warning(
    small_library, tmp_path, monkeypatch, not_set_up
):
    script = tmp_path / "slow"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setattr(build, "SECONDS", 0.2)
    with pytest.warns(UserWarning, match="slow failed: it did not end within 0.2 s") as warned:
        assert not build.setup() and not build.setup()
    assert len(warned) == 1 and not list(small_library.iterdir())


@pytest.mark.parametrize(
    "asked",
    [
        *("", "  ", "'", '"g++', "no-such-compiler", "/", "/etc/passwd", "true", "false", "cat"),
        *("\udcff", "c++ -no-such-flag", "c++ 'a b' \"c\"", "-x", "./here", "~", "$CXX", "a=b c++"),
    ],
)
def test_invalid_values_of_cxx_give_kernels_or_one_warning(
    small_library, asked, monkeypatch, not_set_up
):
    monkeypatch.setenv("CXX", asked)
    monkeypatch.setattr(build, "load", lambda path: path)  # which has no such functions
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = build.setup()
    assert found == (len(warned) == 0)


def test_flags_that_the_compiler_does_not_know_are_replaced_by_the_next_ones(small_library):
    kinds = (("-mno-such-processor",), ("-O0",))
    path = build.build(kinds)
    assert list(small_library.iterdir()) == [path]
    assert build.build(kinds) == path  # from the cache


def test_a_library_that_does_not_run_here_is_not_cached(small_library, monkeypatch):
    monkeypatch.setattr(build, "CHECK", "import os; os.kill(os.getpid(), 4)")
    with pytest.raises(build.BuildError, match="exit code -4"):
        build.build(NO_FLAGS)
    assert not list(small_library.iterdir())


def test_without_a_usable_cache_no_kernels_are_built(small_library, tmp_path, monkeypatch):
    for folder in (str(tmp_path / "small.c++"), "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        with pytest.raises(build.BuildError, match="Set XDG_CACHE_HOME to a folder"):
            build.build(NO_FLAGS)


def test_a_library_in_a_read_only_cache_is_used(small_library, monkeypatch, capsys):
    path = build.build(NO_FLAGS)
    monkeypatch.setattr(build, "_problem", lambda folder: "it cannot be written to")
    capsys.readouterr()
    assert build.build(NO_FLAGS) == path and not capsys.readouterr().err


ROOT = Path(__file__).parents[2]

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


@pytest.fixture
def wheel_folder(libraries, tmp_path, monkeypatch):
    """The folder of a wheel's kernels, where only the lowest level is; nothing is set up yet."""
    compiled = build.build((("-DPORTABLE", "-O1"),))  # which `libraries` has put into the cache
    level = build.LEVELS["x86_64"][-1]
    folder = tmp_path / "lib"
    folder.mkdir()
    monkeypatch.setattr(build, "WHEEL", folder)
    monkeypatch.setattr(build, "levels_here", lambda: [build.LEVELS["x86_64"][0], level])
    code = compiled.read_bytes()
    path = folder / build.prebuilt_name(level)
    path.write_bytes(code)
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
