"""Where the processes of jobs find the functions of `example_jobs`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def importable_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """New processes find `example_jobs` and this library."""
    paths = [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))  # "": the current folder
