"""The tests of `on_a_gpu.py`, in a process of their own.

Where there is no GPU they register a mock of one, and it stays: torch would take it for the
accelerator of all tests that follow, and autograd must not have begun before.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_registry import CASES

TESTS = Path(__file__).with_name("on_a_gpu.py")


@pytest.mark.slow("regard/models", "regard/attention", "regard/layers")
def test_every_model_computes_on_a_gpu_what_it_computes_on_the_cpu():
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(TESTS)], cwd=TESTS.parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 2 * len(CASES)
