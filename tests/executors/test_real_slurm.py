"""The tests of jobs under Slurm against a real Slurm: where sbatch is, and a controller answers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from test_slurm_executor import (  # noqa: F401
    test_a_job_that_is_cancelled_saves_and_is_submitted_again,
    test_near_its_time_limit_a_job_saves_and_is_submitted_again_without_counting,
    test_values_errors_and_jobs_that_are_killed,
    test_what_sbatch_refuses_and_a_folder_that_cannot_be_written_are_errors,
)


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, importable_jobs: None) -> None:
    """A current folder that the machines of the cluster see."""
    if shutil.which("sbatch") is None:
        pytest.skip("sbatch is missing: there is no Slurm here")
    if subprocess.run(["squeue"], capture_output=True).returncode:
        pytest.skip("squeue fails: no Slurm controller answers here")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
