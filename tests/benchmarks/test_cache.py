"""What the benchmarks keep between runs is whole, or not there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.cache import cached
from benchmarks.workers import ROOT


def two_files(place):
    place.mkdir()
    (place / "config.json").write_text("{}")
    (place / "weights").write_text("1")


def test_it_is_made_once(tmp_path):
    made = []
    for _ in range(2):
        assert cached(tmp_path / "new" / "model", lambda p: (two_files(p), made.append(p)))
    assert len(made) == 1 and os.listdir(tmp_path / "new") == ["model"]
    file = cached(tmp_path / "text", lambda place: place.write_text("text"))
    assert file.read_text() == "text"


KILLED = """
import os, pathlib, sys
from benchmarks.cache import cached

def half(place):
    place.mkdir()
    (place / "config.json").write_text("{}")
    os._exit(9)

cached(pathlib.Path(sys.argv[1]), half)
"""


def test_half_of_it_is_not_taken_for_the_whole(tmp_path):
    def fails(place):
        place.mkdir()
        raise RuntimeError("no room")

    place = tmp_path / "model"
    with pytest.raises(RuntimeError):
        cached(place, fails)
    assert not list(tmp_path.iterdir())
    done = subprocess.run([sys.executable, "-c", KILLED, str(place)], cwd=ROOT)
    assert done.returncode == 9 and not place.exists()
    cached(place, two_files)
    assert {path.name for path in place.iterdir()} == {"config.json", "weights"}


def test_whoever_is_first_has_made_it(tmp_path):
    place = tmp_path / "model"

    def slow(made):
        two_files(made)
        two_files(place)  # by another process, meanwhile
        (place / "weights").write_text("2")

    assert (cached(place, slow) / "weights").read_text() == "2"
    assert os.listdir(tmp_path) == ["model"]
