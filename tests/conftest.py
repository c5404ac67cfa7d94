"""Shared fixtures: where the real data lies, and one thread for exact comparisons."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

SHARED = Path(os.environ.get("REGARD_SHARED", Path(__file__).parents[2] / "shared"))

# How fast examples come says something about the machine, and nothing about the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture
def shared():
    """`shared("multi30k/tok")` gives the path of real data, or skips the test by name."""

    def find(name: str) -> Path:
        for path in (SHARED / "data" / name, SHARED / name):
            if path.exists():
                return path
        pytest.skip(f"real data {name} is not on this machine (set REGARD_SHARED)")

    return find
