"""Files that the benchmarks keep between runs are complete or absent."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.cache import cached
from benchmarks.workers import ROOT


def two_files(path):
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "weights").write_text("1")


def test_a_cache_entry_is_made_once(tmp_path):
    made = []
    for _ in range(2):
        assert cached(tmp_path / "new" / "model", lambda p: (two_files(p), made.append(p)))
    assert len(made) == 1 and os.listdir(tmp_path / "new") == ["model"]
    file = cached(tmp_path / "text", lambda path: path.write_text("text"))
    assert file.read_text() == "text"


KILLED = """
import os, pathlib, sys
from benchmarks.cache import cached

def half(path):
    path.mkdir()
    (path / "config.json").write_text("{}")
    os._exit(9)

cached(pathlib.Path(sys.argv[1]), half)
"""


def test_a_cache_entry_whose_making_failed_is_made_again(tmp_path):
    def fails(path):
        path.mkdir()
        raise RuntimeError("no room")

    path = tmp_path / "model"
    with pytest.raises(RuntimeError):
        cached(path, fails)
    assert not list(tmp_path.iterdir())
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=ROOT)
    assert done.returncode == 9 and not path.exists()
    cached(path, two_files)
    assert {file.name for file in path.iterdir()} == {"config.json", "weights"}


def test_a_cache_entry_made_meanwhile_by_another_process_is_used(tmp_path):
    path = tmp_path / "model"

    def slow(made):
        two_files(made)
        two_files(path)  # by another process, meanwhile
        (path / "weights").write_text("2")

    assert (cached(path, slow) / "weights").read_text() == "2"
    assert os.listdir(tmp_path) == ["model"]
