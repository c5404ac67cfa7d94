"""Comparing two checkouts: failures, slowdowns, and the list of measurements."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks import versus, versus_sides
from benchmarks.measure import Measured, Work
from benchmarks.versus_data import RECIPES, Folders


def measured(here, there, left_out=None):
    work = Work("generate", "tokens/s", 10.0, [])
    seconds = {versus.HERE: here, versus.THERE: there}
    memory = dict.fromkeys(seconds, 100.0)
    return Measured(work, seconds=seconds, memory=memory, left_out=left_out or {})


def test_the_median_of_the_ratios_decides_a_comparison():
    found = measured([1.0, 2.0, 4.0], [2.0, 2.0, 2.0])
    assert versus.ratios(found) == [2.0, 1.0, 0.5]
    assert not versus.failed(found, least=1.0)
    assert versus.failed(found, least=1.01)
    assert "| 1.000 (0.500-2.000) |" in versus._row(found)


def test_a_side_that_does_not_run_fails_the_comparison():
    found = measured([], [1.0], {versus.HERE: "failed: TypeError"})
    assert versus.failed(found, least=0.5)
    assert "working tree failed: TypeError" in versus._row(found)


def test_every_work_has_an_existing_side_and_recipe(tmp_path):
    for quick in (True, False):
        for _, _, amount, side, settings in Folders(tmp_path, quick).works():
            assert amount > 0 and hasattr(versus_sides, side)
            assert settings.get("recipe", next(iter(RECIPES))) in RECIPES


def test_a_checkout_has_the_files_of_its_commit(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    git("config", "user.name", "a")
    git("config", "user.email", "a@b")
    for number in (1, 2):
        (tmp_path / "file").write_text(str(number))
        git("add", "file")
        git("commit", "-qm", str(number))
    monkeypatch.setattr(versus, "ROOT", tmp_path)
    path = versus.checkout("HEAD~1", tmp_path / "cache")
    assert (path / "file").read_text() == "1"
    with pytest.raises(SystemExit, match="is not a commit of this repository"):
        versus.checkout("absent", tmp_path / "cache")
