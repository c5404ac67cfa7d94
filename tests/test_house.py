"""The package stays within the ceilings of tests/house.toml: its mass, and what imports load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import house  # noqa: E402


def test_ceilings_are_lowered_and_never_raised(tmp_path):
    now = {"lines": {"part": 3, "root": 9}, "loaded": {"regard.main": 5}}
    limits = {"lines": {"gone": 1, "part": 7, "root": 8}, "loaded": {"regard.main": 5}}
    assert house.exceeded(now, limits) == ["lines.root: 9, and the ceiling is 8"]
    file = tmp_path / "house.toml"
    file.write_text(house.lowered(now, limits))
    assert house.ceilings(file) == {"lines": {"part": 3, "root": 8}, "loaded": {"regard.main": 5}}


@pytest.fixture(scope="module")
def now():
    return house.counts()


def test_what_is_loaded_is_what_python_loads(now):
    start = "regard.models.gpt2"
    code = f"import sys, {start}; print(*[m for m in sys.modules if m.split('.')[0] == 'regard'])"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert abs(now["loaded"][start] - len(run.stdout.split())) <= 2


def test_the_package_is_within_its_ceilings(now):
    over = house.exceeded(now, house.ceilings())
    assert not over, "\n".join([*over, "Make it smaller, or raise the ceiling and say why."])
