"""Building and loading the kernels: files of other users, compilers that hang."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

import pytest

from regard.kernels import build, compiler

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
        compiler.find()
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
def test_nothing_is_loaded_from_a_cache_that_others_may_write_to(small_library, capsys, mode):
    path = build.build(NO_FLAGS)
    small_library.chmod(mode)
    with pytest.raises(build.BuildError, match=f"other users may write to {small_library}"):
        build.load(path)
    capsys.readouterr()
    assert not build.build(NO_FLAGS).is_relative_to(small_library)
    assert f"`chmod go-w {small_library}` forbids it" in capsys.readouterr().err


@POSIX
def test_a_cache_of_another_user_is_not_used(small_library, monkeypatch):
    path = build.build(NO_FLAGS)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:  # whom everybody trusts
        os.chown(small_library, 4321, -1)
    with pytest.raises(build.BuildError, match="belongs to another user"):
        build.load(path)


def test_a_library_with_the_name_of_another_is_rebuilt(small_library):
    path = build.build(NO_FLAGS)
    other = build.build((("-O0",),))
    other.write_bytes(path.read_bytes())  # whole, but not what its name says
    with pytest.raises(build.BuildError, match="damaged"):
        build.load(other)
    assert build.build((("-O0",),)) == other and other.read_bytes() != path.read_bytes()


def test_leftovers_of_killed_builds_are_removed(small_library):
    library = build.build(NO_FLAGS)
    old, new = small_library / "build-old", small_library / "build-new"
    for path in (old, new):
        path.mkdir()
    os.utime(old, (1, 1))
    library.unlink()
    build.build(NO_FLAGS)
    assert not old.exists() and new.exists()


# ---- compilers

HANGING = """#!/bin/sh
sleep 600 &
echo "$! $$" > {told}.new && mv {told}.new {told}
sleep 600
"""


def hanging_compiler(tmp_path) -> tuple[Path, Path]:
    """A compiler that starts a process and hangs, and the file to which it writes both ids."""
    script, told = tmp_path / "slow", tmp_path / "told"
    script.write_text(HANGING.format(told=told))
    script.chmod(0o755)
    return script, told


def is_running(number: int) -> bool:
    try:
        stat = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def wait_until(found, seconds=120.0) -> bool:
    """Whether it is found in a time that is far longer than even a busy machine needs."""
    end = time.monotonic() + seconds
    while not found() and time.monotonic() < end:
        time.sleep(0.02)
    return found()


@POSIX
def test_a_compiler_that_hangs_is_killed_and_named_in_a_warning(
    small_library, tmp_path, monkeypatch, not_set_up
):
    script, told = hanging_compiler(tmp_path)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setattr(build, "SECONDS", 1)
    began = time.monotonic()
    with pytest.warns(UserWarning, match="slow did not end within 1 second") as warned:
        assert not build.setup() and not build.setup()
    assert len(warned) == 1 and time.monotonic() - began < 60
    if Path("/proc/self/stat").exists():
        children = [int(number) for number in told.read_text().split()]
        assert wait_until(lambda: not any(map(is_running, children)))
    assert not list(small_library.iterdir())


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


@pytest.mark.parametrize("where", ["chmod", "replace", "TemporaryDirectory", "TemporaryFile"])
def test_a_full_disk_while_building_gives_one_warning(
    small_library, monkeypatch, not_set_up, where
):
    def full(*given, **more):
        raise OSError(28, "No space left on device")

    owner = {"chmod": Path, "replace": os}.get(where, compiler.tempfile)
    monkeypatch.setattr(owner, where, full)
    with pytest.warns(UserWarning, match="No space left on device") as warned:
        assert not build.setup() and not build.setup()
    assert len(warned) == 1
