"""Jobs in processes of this machine: results, errors, lost processes, and how all of them end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from recipe_files import written
from tiny_folders import folder as model_folder
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import ConfigError, RegardError
from regard.executors import Job, JobLost, Json, make_executor, results_of
from regard.executors.local import LocalExecutor, available_cpus

HERE = Path(__file__).parent


pytestmark = pytest.mark.usefixtures("importable_jobs")


def value(function: str, **arguments: Json) -> Json:
    return make_executor("local", 1).submit(Job(f"example_jobs:{function}", arguments)).result()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_each_job_has_one_value_whatever_the_number_of_workers():
    for workers in (1, 3):
        jobs = [Job("example_jobs:double", {"number": n}, str(n)) for n in range(4)]
        results = results_of(make_executor("local", workers), jobs)
        values = sorted((job.name, future.result()) for job, future in results)
        assert values == [("0", 0), ("1", 2), ("2", 4), ("3", 6)]


def test_printed_lines_reach_the_log():
    lines: list[tuple[str, str]] = []
    executor = make_executor("local", 1, lambda *line: lines.append(line))
    assert executor.submit(Job("example_jobs:say", {"text": "hé"}, "say")).result() is None
    assert sorted(lines) == [("say", "and so on"), ("say", "hé")]


def test_an_error_of_the_function_is_raised_and_no_reason_to_run_it_again():
    with pytest.raises(RegardError, match="^x.csv:3: is wrong"):
        value("fail", path="x.csv")
    with pytest.raises(RegardError, match="^TypeError: a bug"):
        value("break_down")


def test_a_job_whose_process_is_killed_starts_again_a_bounded_number_of_times(
    tmp_path, monkeypatch
):
    lines: list[tuple[str, str]] = []
    job = Job("example_jobs:die_at_first", {"folder": str(tmp_path), "times": 2})
    executor = LocalExecutor(1, None, lambda *line: lines.append(line))
    assert executor.submit(job).result() == 3
    assert lines == [("job", "its process was killed by SIGKILL; it is started again")] * 2
    (again := tmp_path / "again").mkdir()
    job = Job("example_jobs:die_at_first", {"folder": str(again), "times": 9})
    with pytest.raises(JobLost, match="its process was killed by SIGKILL, 2 times"):
        monkeypatch.setattr("regard.executors.local.RESTARTS", 1)
        LocalExecutor(1).submit(job).result()


def test_threads_are_divided_among_workers_and_gpus_given_out(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    jobs = [Job("example_jobs:facts", {}, gpus=2), Job("example_jobs:facts", {}, cpus=5, gpus=2)]
    executor = make_executor("local", 2)
    shared, own = [future.result() for future in map(executor.submit, jobs)]
    each = str(max(1, available_cpus() // 2))
    assert shared["OMP_NUM_THREADS"] == shared["RAYON_NUM_THREADS"] == each
    assert {one["CUDA_VISIBLE_DEVICES"] for one in (shared, own)} == {"4,5", "6,7"}
    assert own["OMP_NUM_THREADS"] == "5"
    assert (own["ONEDNN_PRIMITIVE_CACHE_CAPACITY"], own["LRU_CACHE_CAPACITY"]) == ("64", "7")
    for named, known in (("4,5,6,7", 4), ("", 0), ("3,", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        with pytest.raises(ConfigError, match=f"3 workers with 2 GPUs .* names {known}: "):
            make_executor("local", 3).submit(jobs[0]).result()


def test_a_suspended_job_saves_and_ends_when_the_results_are_closed(tmp_path):
    jobs = [
        Job("example_jobs:work", {"folder": str(tmp_path), "name": "a"}),
        Job("example_jobs:double", {"number": 1}),
    ]
    with closing(results_of(make_executor("local", 2), jobs)) as results:
        assert next(results)[1].result() == 2
        until((tmp_path / "a.pid").exists)
        time.sleep(0.05)  # it listens for signals
        os.kill(int((tmp_path / "a.pid").read_text()), signal.SIGSTOP)
    assert (tmp_path / "a.saved").exists()
    assert not alive(int((tmp_path / "a.pid").read_text()))


def test_a_job_imports_what_this_process_does_and_no_file_of_the_current_folder(
    tmp_path, monkeypatch
):
    for name in ("queue", "json", "torch"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('it is a file of data')")
    monkeypatch.chdir(tmp_path)
    assert value("double", number=4) == 8


@pytest.fixture
def waiting(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """The program with two running jobs; the parameter says whether they end when asked to."""
    command = [sys.executable, str(HERE / "waiting_program.py"), str(tmp_path), request.param]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
        until(lambda: all((tmp_path / f"{name}.pid").exists() for name in "ab"))
        time.sleep(0.1)
        yield program
        program.kill()


def ended(folder: Path) -> None:
    for name in "ab":
        pid = int((folder / f"{name}.pid").read_text())
        until(lambda pid=pid: not alive(pid))  # type: ignore[misc]


@pytest.mark.parametrize("waiting", ["willing"], indirect=True)
@pytest.mark.parametrize(
    "number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_jobs_save_and_end_when_the_waiting_process_is_interrupted_or_killed(
    waiting, number, code, tmp_path
):
    waiting.send_signal(number)
    assert waiting.wait(20) == code
    ended(tmp_path)
    assert (tmp_path / "a.saved").exists() and (tmp_path / "b.saved").exists()


@pytest.mark.parametrize("waiting", ["stubborn"], indirect=True)
def test_a_second_interrupt_ends_jobs_that_do_not_stop(waiting, tmp_path):
    waiting.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert waiting.poll() is None
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(20) == 99
    ended(tmp_path)


# ---- executor errors

RECIPE = dict(
    task="language-modeling",
    data=dict(train="train.txt", valid="train.txt"),
    model=dict(name="lstm-lm", d_model=4),
    training=dict(max_steps=1),
)
RATE = "training.optimizer.learning_rate=0.1,0.2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("on")
    model_folder(made / "model", "bert", "Model")
    (made / "train.txt").write_text("a b c\n" * 9)
    written(made / "lm.toml", RECIPE)
    return made


def without_a_cluster() -> ModuleType:
    """What is imported as Ray where no cluster answers."""

    def init(address: str, **options: object) -> None:
        raise ConnectionError(f"nothing answers at {address}\nand so on")

    made: Any = ModuleType("ray")
    made.__version__, made.is_initialized, made.init = "2.60.0", lambda: False, init
    made.shutdown = lambda: None
    return made


CASES = {
    "no-ray": (("ray",), None, r"pip install 'regard[ray]'"),
    "no-cluster": (
        ("ray", "--ray-address", "HOST:10001"),
        without_a_cluster(),
        "cannot connect to a Ray cluster (ray://HOST:10001): nothing answers at ray://HOST:10001",
    ),
    "no-slurm": (("slurm", "--partition", "gpu"), None, "Slurm was not found"),
    "local-partition": (
        ("local", "--partition", "gpu"),
        None,
        "`partition` is an option of the executor slurm",
    ),
    "no-executor": (("clouds",), None, "There is no executor 'clouds'"),
}


@pytest.fixture(params=CASES)
def case(request, monkeypatch) -> tuple[tuple[str, ...], str]:
    """The words after `--executor` and the error."""
    chosen, ray, told = CASES[request.param]
    if request.param == "no-slurm":
        pytest.importorskip("submitit")
        monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return chosen, told


@pytest.mark.parametrize("command", ["sweep", "embed"])
def test_a_wrong_executor_is_the_only_thing_that_is_said_and_nothing_is_written(
    folder, tmp_path, monkeypatch, case, command
):
    (chosen, told), out = case, tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    words = {
        "sweep": [folder / "lm.toml", "--param-space", RATE],
        "embed": [folder / "model", folder / "train.txt", "--workers", "1"],
    }[command]
    words = [*words, "--executor", *chosen, "--out", out]
    done = CliRunner().invoke(app, [command, *map(str, words)])
    assert done.exit_code == 2 and done.stdout == "" and done.stderr.count("error:") == 1
    assert done.stderr.startswith("error: ") and told in done.stderr
    assert not list(tmp_path.iterdir())
