"""Building and loading the kernels: files of other users, compilers that hang."""

from __future__ import annotations

import os
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


@pytest.mark.parametrize("where", ["chmod", "replace", "TemporaryDirectory"])
def test_a_full_disk_while_building_gives_one_warning(
    small_library, monkeypatch, not_set_up, where
):
    def full(*given, **more):
        raise OSError(28, "No space left on device")

    owner = {"chmod": Path, "replace": os}.get(where, build.tempfile)
    monkeypatch.setattr(owner, where, full)
    with pytest.warns(UserWarning, match="No space left on device") as warned:
        assert not build.setup() and not build.setup()
    assert len(warned) == 1


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


@pytest.mark.parametrize("keep", [0, 9000, -1])
def test_a_damaged_library_is_compiled_again(small_library, keep):
    path = build.build(NO_FLAGS)
    whole = path.read_bytes()
    assert len(whole) > 9000
    for damaged in (whole[:keep], bytes(100) + whole[100:]):  # which nobody may load
        path.write_bytes(damaged)
        assert build.build(NO_FLAGS) == path
        assert path.read_bytes() == whole


def test_without_a_usable_cache_kernels_are_built_for_the_process(
    small_library, tmp_path, monkeypatch, capsys
):
    for folder in (str(tmp_path / "small.c++"), "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        path = build.build(NO_FLAGS)
        assert path.exists() and not path.is_relative_to(tmp_path)
        assert "for this process alone" in capsys.readouterr().err


def test_a_library_in_a_read_only_cache_is_used(small_library, monkeypatch, capsys):
    path = build.build(NO_FLAGS)
    monkeypatch.setattr(build, "_problem", lambda folder: "it cannot be written to")
    capsys.readouterr()
    assert build.build(NO_FLAGS) == path and not capsys.readouterr().err


def test_the_message_of_an_invalid_source_is_the_line_that_explains_it(small_library, tmp_path):
    (tmp_path / "small.c++").write_text("int main() {\n  return none;\n}\n")
    with pytest.raises(build.BuildError, match="‘?none’? was not declared|undeclared identifier"):
        build.build(NO_FLAGS)
