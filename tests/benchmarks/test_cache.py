"""Files that the benchmarks keep between runs are complete or absent."""

from __future__ import annotations

import os

import pytest

from benchmarks.cache import cached


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


def test_a_cache_entry_whose_making_failed_is_made_again(tmp_path):
    def fails(path):
        path.mkdir()
        raise RuntimeError("no room")

    path = tmp_path / "model"
    with pytest.raises(RuntimeError):
        cached(path, fails)
    assert not list(tmp_path.iterdir())
    cached(path, two_files)
    assert {file.name for file in path.iterdir()} == {"config.json", "weights"}
