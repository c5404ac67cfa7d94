"""Jobs under Slurm: submitit runs them here in processes, as it would on a cluster."""

from __future__ import annotations

import builtins

import pytest
from recording_listener import RecordingListener

from regard.errors import ConfigError, MissingExtra, RegardError
from regard.executors import Job, executor
from regard.executors.slurm import SlurmExecutor, _options

submitit = pytest.importorskip("submitit")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, importable_jobs):
    monkeypatch.chdir(tmp_path)


def test_results_errors_messages_lines_and_jobs_that_are_lost(tmp_path, monkeypatch):
    # submitit waits so long for the file of a result; a killed job has none.
    monkeypatch.setattr(submitit.core.core.Job, "_results_timeout_s", 1)
    (tmp_path / "begun").mkdir()
    jobs = [
        Job("example_jobs:say", {"text": "hé"}, "say it"),
        Job("example_jobs:fail", {"path": "x.csv"}, "fail"),
        Job("example_jobs:die_at_first", {"folder": str(tmp_path / "begun"), "times": 1}, "die"),
        Job("example_jobs:facts", {}, "facts", cpus=3),
    ]
    heard, runner = RecordingListener(), SlurmExecutor(4, cluster="local", pause=0.1)
    found = {result.job.name: result for result in runner.run(jobs, heard)}
    assert found["say it"].error == "" and heard.messages == [("say it", {"text": "hé"})]
    assert ("say it", "hé") in heard.lines
    assert found["fail"].error == "x.csv:3: is wrong."
    assert found["die"].value == 2
    assert any("was lost" in line and "started again" in line for _, line in heard.lines)
    assert found["facts"].checked()["OMP_NUM_THREADS"] == "3"  # type: ignore[index, call-overload]


def test_the_options_of_sbatch_are_those_of_the_address():
    runner = SlurmExecutor(1, "gpu?time=90&account=lab", cluster="local")
    assert runner.options == {"partition": "gpu", "time": "90", "account": "lab"}
    with pytest.raises(ConfigError, match="must be a whole number of minutes, but is '1:30'"):
        _options("?time=1:30")


def test_without_slurm_or_submitit_an_error_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RegardError, match="Slurm was not found.*--on local"):
        executor("slurm://gpu", 2)
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "submitit":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"pip install 'regard\[slurm\]'"):
        executor("slurm", 2)
