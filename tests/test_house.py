"""The package stays within the ceilings of tests/house.toml: its mass, and what imports load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import house  # noqa: E402

MODULE = '''"""A docstring,
of two lines."""

import json  # a comment is no code
from typing import (
    TYPE_CHECKING,
)

if TYPE_CHECKING:
    import regard.late

from . import low


def f(x):
    """See `low`."""
    import regard.late

    found = [
        x,
    ]
    if not found:
        raise ValueError(
            "no x"
        )
    return """no
docstring"""
'''


@pytest.fixture
def tiny(tmp_path):
    for name, text in {
        "regard/__init__.py": "",
        "regard/late.py": "x = 1\n",
        "regard/low.py": "import regard.part.deep\n",
        "regard/part/__init__.py": "",
        "regard/part/deep.py": '"""Nothing."""\n',
        "regard/main.py": MODULE,
        "tests/test_it.py": "def test_it():\n    assert True\n",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_the_counts_of_a_tiny_package(tiny, monkeypatch):
    monkeypatch.setattr(house, "STARTS", ("regard.main",))
    now = house.counts(tiny)
    assert now["regard"]["files"] == 6
    assert now["lines"] == {"part": 0, "root": 20}
    assert now["regard"]["percent_imports"] == round(100 * 8 / 20, 1)
    assert now["regard"]["percent_raises"] == round(100 * 3 / 20, 1)
    assert now["regard"]["referring_docstrings"] == 1
    assert now["regard"]["pronoun_variables"] == 1
    assert now["tests"] == {"lines": 2}
    # main, low, part.deep with the packages above them; not what a function or a checker imports
    assert now["loaded"] == {"regard.main": 5}


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
