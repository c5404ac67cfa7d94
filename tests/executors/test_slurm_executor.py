"""Jobs under Slurm. Here sbatch, squeue etc. are those of fake_slurm.py; test_real_slurm.py runs
the tests whose names are imported there against a real Slurm."""

from __future__ import annotations

import builtins
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from recording_listener import RecordingListener

from regard.errors import ConfigError, MissingExtra, RegardError
from regard.executors import ExecutorOptions, Job, make_executor
from regard.executors.slurm import SlurmExecutor, _options
from regard.training.interrupt import Interrupted

submitit = pytest.importorskip("submitit")
COMMANDS = "sbatch", "srun", "squeue", "scancel", "scontrol"
PAUSE = 0.2  # seconds between two looks at the files; a call of squeue is after five


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


def test_results_errors_messages_lines_and_jobs_that_are_killed(tmp_path):
    (tmp_path / "begun").mkdir()
    jobs = [
        Job("example_jobs:say", {"text": "hé"}, "say it"),
        Job("example_jobs:fail", {"path": "x.csv"}, "fail"),
        Job("example_jobs:die_at_first", {"folder": str(tmp_path / "begun"), "times": 1}, "die"),
        Job("example_jobs:facts", {}, "facts", cpus=2),
    ]
    heard = RecordingListener()
    found = {one.job.name: one for one in SlurmExecutor(4, pause=PAUSE).run(jobs, heard)}
    assert found["say it"].error == "" and heard.messages == [("say it", {"text": "hé"})]
    assert ("say it", "hé") in heard.lines
    assert found["fail"].error == "x.csv:3: is wrong."
    assert found["die"].value == 2
    lost = [line for name, line in heard.lines if name == "die" and "started again" in line]
    assert len(lost) == 1 and "was lost (FAILED, NonZeroExitCode); it is started again" in lost[0]
    assert found["facts"].checked()["OMP_NUM_THREADS"] == "2"  # type: ignore[index, call-overload]


def test_a_job_that_is_killed_too_often_is_lost(tmp_path):
    (tmp_path / "begun").mkdir()
    job = Job("example_jobs:die_at_first", {"folder": str(tmp_path / "begun"), "times": 9})
    (found,) = SlurmExecutor(1, restarts=1, pause=PAUSE).run([job], RecordingListener())
    assert found.lost and "(FAILED, NonZeroExitCode), 2 times" in found.error


def test_a_job_that_is_cancelled_saves_and_is_submitted_again(tmp_path):
    job = Job("example_jobs:stopped_at_first", {"folder": str(tmp_path)})
    heard = RecordingListener()

    def disturb() -> None:
        wait_for((tmp_path / "0.pid").exists)
        subprocess.run(["scancel", job_numbers()[0]], check=True)

    thread = threading.Thread(target=disturb)
    thread.start()
    (found,) = SlurmExecutor(1, pause=PAUSE).run([job], heard)
    thread.join()
    assert found.value == "after 1 stop" and len(job_numbers()) == 2
    assert any("was lost (CANCELLED); it is started again" in line for _, line in heard.lines)


def test_a_job_that_the_cluster_requeues_is_not_submitted_again(tmp_path):
    job = Job("example_jobs:stopped_at_first", {"folder": str(tmp_path)})

    def disturb() -> None:
        wait_for((tmp_path / "0.pid").exists)
        subprocess.run(["scontrol", "requeue", job_numbers()[0]], check=True)

    thread = threading.Thread(target=disturb)
    thread.start()
    (found,) = SlurmExecutor(1, pause=PAUSE).run([job], RecordingListener())
    thread.join()
    assert found.value == "after 1 stop" and len(job_numbers()) == 1


def test_near_its_time_limit_a_job_saves_and_is_submitted_again_without_counting(tmp_path):
    job = Job("example_jobs:stopped_at_first", {"folder": str(tmp_path)})
    heard = RecordingListener()
    (found,) = SlurmExecutor(1, ExecutorOptions("slurm", time=1), restarts=0, pause=PAUSE).run(
        [job], heard
    )
    assert found.value == "after 1 stop"
    assert any(
        "has saved near its time limit; it is started again" in one for _, one in heard.lines
    )


def test_a_closed_generator_cancels_the_jobs_which_save(tmp_path):
    jobs = [Job("example_jobs:double", {"number": 4}, "double")]
    jobs += [Job("example_jobs:work", {"folder": str(tmp_path), "name": n}, n) for n in "ab"]
    with closing(SlurmExecutor(3, pause=PAUSE).run(jobs, RecordingListener())) as results:
        assert next(results).value == 8
        wait_for(lambda: (tmp_path / "a.pid").exists() and (tmp_path / "b.pid").exists())
    assert (tmp_path / "a.saved").exists() and (tmp_path / "b.saved").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_cancel_the_jobs_which_save(tmp_path, number):
    def disturb() -> None:
        wait_for((tmp_path / "a.pid").exists)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=disturb)
    thread.start()
    job = Job("example_jobs:work", {"folder": str(tmp_path), "name": "a"})
    with pytest.raises(Interrupted) as stopped:
        list(SlurmExecutor(1, pause=PAUSE).run([job], RecordingListener()))
    thread.join()
    assert stopped.value.code == 128 + number and (tmp_path / "a.saved").exists()


def test_a_job_that_sbatch_refuses_is_an_error_with_its_words():
    job = Job("example_jobs:double", {"number": 4}, "double")
    with pytest.raises(ConfigError, match="double could not be submitted: .*nowhere"):
        list(
            SlurmExecutor(1, ExecutorOptions("slurm", "nowhere"), pause=PAUSE).run(
                [job], RecordingListener()
            )
        )


def test_a_job_that_would_never_start_is_an_error():
    job = Job("example_jobs:double", {"number": 4}, "double", cpus=1000)
    begun = time.monotonic()
    with pytest.raises(ConfigError, match="never start it \\(PartitionConfig\\)|not be submitted"):
        list(SlurmExecutor(1, pause=PAUSE).run([job], RecordingListener()))
    assert time.monotonic() - begun < 30


def test_a_command_in_a_job_submits_jobs_of_their_own(monkeypatch):
    """`salloc`, `srun` and `sbatch` set these, and a new job would inherit them."""
    given = {
        "SLURM_JOB_ID": "7",
        "SLURM_CPU_BIND_LIST": "0x4000",
        "SLURM_CPU_BIND": "mask_cpu:0x4000",
    }
    given |= {
        "SLURM_CPU_BIND_TYPE": "mask_cpu:",
        "SLURM_MEM_PER_CPU": "5",
        "SLURM_MEM_PER_NODE": "5",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    job = Job("example_jobs:double", {"number": 4}, "double")
    (found,) = SlurmExecutor(1, restarts=0, pause=PAUSE).run([job], RecordingListener())
    assert found.value == 8 and os.environ["SLURM_JOB_ID"] == "7"


def test_a_folder_that_cannot_be_written_is_an_error():
    Path("slurm-jobs").write_text("")
    job = Job("example_jobs:double", {"number": 4})
    with pytest.raises(RegardError, match="slurm-jobs cannot be written"):
        list(SlurmExecutor(1, pause=PAUSE).run([job], RecordingListener()))


# ------------------------------------------------------------------------ not with a real Slurm


def test_a_controller_that_does_not_answer_is_waited_for(tmp_path, cluster):
    """Running jobs end, and what died meanwhile is submitted when it answers again."""
    (tmp_path / "begun").mkdir()
    jobs = [
        Job("example_jobs:die_at_first", {"folder": str(tmp_path / "begun"), "times": 1}, "die"),
        Job("example_jobs:double", {"number": 4}, "double"),
        Job("example_jobs:double", {"number": 5}, "later"),
    ]
    heard = RecordingListener()
    results = SlurmExecutor(2, pause=PAUSE).run(jobs, heard)

    def answer_again() -> None:
        wait_for(lambda: any("does not answer" in line for _, line in heard.lines))
        time.sleep(1)
        (cluster / "silent").unlink()

    thread = threading.Thread(target=answer_again)
    thread.start()
    found = {}
    for one in results:
        if one.job.name == "double":
            (cluster / "silent").touch()
        found[one.job.name] = one.value
    thread.join()
    assert found == {"die": 2, "double": 8, "later": 10}
    assert sum("does not answer" in line for _, line in heard.lines) == 1


def test_a_controller_that_does_not_answer_at_first_is_an_error(cluster):
    (cluster / "silent").touch()
    job = Job("example_jobs:double", {"number": 4}, "double")
    with pytest.raises(RegardError, match="could not be submitted.*Unable to contact"):
        list(SlurmExecutor(1, pause=PAUSE).run([job], RecordingListener()))


def test_jobs_that_cannot_be_cancelled_are_named(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr("regard.executors.slurm.STOP_TIMEOUT", 2.0)
    jobs = [Job("example_jobs:double", {"number": 4}, "double")]
    jobs += [Job("example_jobs:work", {"folder": str(tmp_path), "name": "a"}, "a")]
    heard = RecordingListener()
    with closing(SlurmExecutor(2, pause=PAUSE).run(jobs, heard)) as results:
        assert next(results).value == 8
        wait_for((tmp_path / "a.pid").exists)
        (cluster / "silent").touch()
    (cluster / "silent").unlink()
    assert heard.lines[-1] == ("a", "the Slurm jobs have not ended yet. To end them: scancel 2")
    subprocess.run(["scancel", "2"], check=True)
    wait_for((tmp_path / "a.saved").exists)


def test_the_options_are_those_of_sbatch():
    more = ("reservation=r1", "--exclusive")
    options = ExecutorOptions("slurm", "debug", 90, "lab", more)
    runner = SlurmExecutor(1, options, pause=PAUSE)
    job = Job("example_jobs:double", {"number": 4}, "double")
    assert [one.value for one in runner.run([job], RecordingListener())] == [8]
    script = next(Path("slurm-jobs").glob("*_submission.sh")).read_text()
    options = [line[8:] for line in script.splitlines() if line[:7] == "#SBATCH"]
    assert {
        "--partition=debug", "--time=90", "--account=lab", "--reservation=r1", "--exclusive"
    } < set(options)  # fmt: skip
    assert "--signal=USR2@90" in options and not any("gpus" in one for one in options)


def test_options_that_cannot_be_used_are_named():
    with pytest.raises(ConfigError, match="at least 1 .minute., but is 0"):
        ExecutorOptions("slurm", time=0)
    with pytest.raises(ConfigError, match="`clusters` cannot be set"):
        _options(ExecutorOptions("slurm", sbatch=("clusters=other",)))
    with pytest.raises(ConfigError, match="`account` is an option of the executor slurm"):
        ExecutorOptions("ray", account="lab")


@pytest.mark.parametrize("missing", ["sbatch", "srun", "squeue"])
def test_a_missing_command_is_named(cluster, monkeypatch, missing):
    monkeypatch.setenv("PATH", str(cluster))
    (cluster / missing).unlink()
    with pytest.raises(RegardError, match=f"Slurm was not found.*no `{missing}`.*--executor local"):
        make_executor("slurm", 2)


def test_a_missing_submitit_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "submitit":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"pip install 'regard\[slurm\]'"):
        make_executor("slurm", 2)
