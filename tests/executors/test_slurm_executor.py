"""Jobs under Slurm. Here sbatch, sacct etc. are those of fake_slurm.py; test_real_slurm.py runs
the tests whose names are imported there against a real Slurm."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from regard.errors import ConfigError, MissingExtra, RegardError
from regard.executors import ExecutorOptions, Job, JobLost, make_executor, results_of
from regard.executors.clusters import SlurmExecutor

submitit = pytest.importorskip("submitit")
COMMANDS = "sbatch", "srun", "sacct", "scancel", "scontrol"


FIRST_NUMBERS = count(1, 1000)


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, importable_jobs: None) -> Path:
    """The folder of the fake's commands; the current folder is another one."""
    commands = tmp_path / "commands"
    commands.mkdir()
    program = Path(__file__).with_name("fake_slurm.py").read_text().split("\n", 1)[1]
    for name in COMMANDS:
        (commands / name).write_text(f"#!{sys.executable}\n{program}")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_SLURM_MINUTE", "9")
    # submitit keeps the states of all jobs: a number that another test had would have ended.
    monkeypatch.setenv("FAKE_SLURM_FIRST", str(next(FIRST_NUMBERS)))
    monkeypatch.setattr(submitit.core.core.Job, "_results_timeout_s", 2)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return commands


def wait_for(true: Callable[[], object], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


def job_numbers() -> list[str]:
    """The Slurm jobs that were submitted from the current folder, in order."""
    names = (one.name.split("_")[0] for one in Path("slurm-jobs").glob("*_submission.sh"))
    return sorted(names, key=int)


@pytest.mark.slow("regard/executors")
def test_values_errors_and_jobs_that_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.executors.clusters.RESTARTS", 1)
    for name in ("once", "often"):
        (tmp_path / name).mkdir()
    jobs = [
        Job("example_jobs:fail", {"path": "x.csv"}, "fail"),
        Job("example_jobs:die_at_first", {"folder": str(tmp_path / "once"), "times": 1}, "once"),
        Job("example_jobs:die_at_first", {"folder": str(tmp_path / "often"), "times": 9}, "often"),
        Job("example_jobs:facts", {}, "facts", cpus=2),
    ]
    lines: list[tuple[str, str]] = []
    executor = SlurmExecutor(4, None, lambda *line: lines.append(line))
    found = {job.name: future for job, future in results_of(executor, jobs)}
    with pytest.raises(RegardError, match="^x.csv:3: is wrong."):
        found["fail"].result()
    assert found["once"].result() == 2
    with pytest.raises(JobLost, match=r"was lost \(FAILED\), see .*\.err, 2 times"):
        found["often"].result()
    assert [name for name, line in lines if "it is submitted again" in line] != []
    assert found["facts"].result()["OMP_NUM_THREADS"] == "2"  # type: ignore[index, call-overload]


@pytest.mark.slow("regard/executors")
def test_a_job_that_is_cancelled_saves_and_is_submitted_again(tmp_path):
    executor = SlurmExecutor(1)
    future = executor.submit(Job("example_jobs:stopped_at_first", {"folder": str(tmp_path)}))
    wait_for((tmp_path / "0.pid").exists)
    time.sleep(0.3)  # it listens for signals
    subprocess.run(["scancel", job_numbers()[0]], check=True)
    assert future.result() == "after 1 stop" and len(job_numbers()) == 2


@pytest.mark.slow("regard/executors")
def test_near_its_time_limit_a_job_saves_and_is_submitted_again_without_counting(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("regard.executors.clusters.RESTARTS", 0)
    lines: list[str] = []
    options = ExecutorOptions("slurm", time=1)
    executor = SlurmExecutor(1, options, lambda name, line: lines.append(line))
    job = Job("example_jobs:stopped_at_first", {"folder": str(tmp_path)})
    assert executor.submit(job).result() == "after 1 stop"
    assert "has saved near its time limit; it is submitted again" in lines[0]


def test_what_sbatch_refuses_and_a_folder_that_cannot_be_written_are_errors():
    job = Job("example_jobs:double", {"number": 4}, "double")
    with pytest.raises(ConfigError, match="double could not be submitted: .*nowhere"):
        SlurmExecutor(1, ExecutorOptions("slurm", "nowhere")).submit(job).result()
    subprocess.run(["rm", "-r", "slurm-jobs"], check=True)
    Path("slurm-jobs").write_text("")
    with pytest.raises(ConfigError, match="double could not be submitted: .*slurm-jobs"):
        SlurmExecutor(1).submit(job).result()


# ------------------------------------------------------------------------ not with a real Slurm


def test_the_options_are_those_of_sbatch():
    more = ("reservation=r1", "--exclusive")
    options = ExecutorOptions("slurm", "debug", 90, "lab", more)
    future = SlurmExecutor(1, options).submit(Job("example_jobs:double", {"number": 4}, "double"))
    assert future.result() == 8
    script = next(Path("slurm-jobs").glob("*_submission.sh")).read_text()
    lines = {line[8:] for line in script.splitlines() if line[:7] == "#SBATCH"}
    assert {
        "--partition=debug", "--time=90", "--account=lab", "--reservation=r1", "--exclusive",
        "--signal=USR2@90",
    } < lines  # fmt: skip
    with pytest.raises(ConfigError, match="at least 1, but is 0"):
        ExecutorOptions("slurm", time=0)
    with pytest.raises(ConfigError, match="`account` is an option of the executor slurm"):
        ExecutorOptions("ray", account="lab")


def test_what_is_missing_is_named(cluster, monkeypatch):
    monkeypatch.setenv("PATH", str(cluster))
    (cluster / "srun").unlink()
    with pytest.raises(RegardError, match="Slurm was not found.*srun.*--executor local"):
        make_executor("slurm", 2)
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "submitit":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"pip install 'regard\[slurm\]'"):
        make_executor("slurm", 2)
