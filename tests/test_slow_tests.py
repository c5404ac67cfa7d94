"""Slow tests run when what they cover has changed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import slow_tests  # noqa: E402

TEST = """
import pytest

@pytest.mark.slow("regard/kernels", "tools/dist.py")
def test_it(): ...
"""


@pytest.mark.parametrize(
    ("changed", "target"),
    [
        ([], "test"),
        (["regard/kernels.md", "docs/index.md"], "test"),
        (["docs/index.md", "regard/kernels/cpp/a.h"], "test-all"),
        (["tools/dist.py"], "test-all"),
        (["tests/part/test_it.py"], "test-all"),
        (["constraints.txt"], "test-all"),
    ],
)
def test_the_target_is_that_of_the_changed_files(changed, target, tmp_path):
    (tmp_path / "tests/part").mkdir(parents=True)
    (tmp_path / "tests/part/test_it.py").write_text(TEST)
    (tmp_path / "tests/part/test_other.py").write_text("def test_other(): ...")
    assert slow_tests.target(changed, tmp_path) == target


def test_every_slow_test_names_what_it_covers():
    marks = list(slow_tests.marks())
    assert marks and all(names for _, names in marks)
    missing = {name for _, names in marks for name in names if not (ROOT / name).exists()}
    assert not missing
    others = {*(ROOT / "tests").rglob("test_*.py")} - {Path(__file__)}
    assert sum(path.read_text("utf-8").count("mark.slow") for path in others) == len(marks)
