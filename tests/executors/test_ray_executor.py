"""Jobs on a Ray cluster that is started on this machine: what they return, say, survive."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from recording_listener import RecordingListener

import regard
from regard.errors import ConfigError, MissingExtra, RegardError
from regard.executors import ExecutorOptions, Job, JobResult, make_executor
from regard.executors import ray as on_ray
from regard.training import Interrupted

HERE = str(Path(__file__).parent)
sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))


@pytest.fixture(scope="module")
def cluster():
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    if "ray" in sys.modules:
        pytest.skip("ray was imported by something else, and has read its settings")
    with pytest.MonkeyPatch.context() as patched:
        path = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
        patched.setenv("PYTHONPATH", path)  # of the processes of the cluster
        patched.delenv("RAY_ADDRESS", raising=False)
        ray = on_ray.connected()
        yield ray
        ray.shutdown()


def test_jobs_return_values_errors_messages_and_lines_and_lost_ones_start_again(cluster, tmp_path):
    jobs = [
        Job("example_jobs:double", {"number": 4}, "double"),
        Job("example_jobs:say", {"text": "hello"}, "say"),
        Job("example_jobs:fail", {"path": "p"}, "fail"),
        Job("example_jobs:facts", {}, "facts", cpus=3),
        Job("example_jobs:die_at_first", {"folder": str(tmp_path), "times": 1}, "die"),
    ]
    heard = RecordingListener()
    found = {result.job.name: result for result in make_executor("ray", 2).run(jobs, heard)}
    assert found["double"].value == 8 and found["die"].value == 2
    assert found["fail"].error == "p:3: is wrong." and found["fail"].value is None
    assert found["facts"].value["OMP_NUM_THREADS"] == "3"
    assert heard.messages == [("say", {"text": "hello"})]
    assert {("say", "hello"), ("say", "and so on")} <= {*heard.lines}
    assert any("its process or machine died" in line for name, line in heard.lines if name == "die")


def test_the_cluster_listens_on_the_loopback_address_alone(cluster):
    psutil = pytest.importorskip("psutil")
    connections = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            connections += child.net_connections("inet")
    listening = [one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN]
    assert listening and {one.removeprefix("::ffff:") for one in listening} == {"127.0.0.1"}


def test_an_interrupted_job_saves_and_ends(cluster, tmp_path):
    def interrupt() -> None:
        while not list(tmp_path.glob("*.pid")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    job = Job("example_jobs:work", {"folder": str(tmp_path), "name": "a"})
    with pytest.raises(Interrupted) as stopped:
        list(make_executor("ray", 1).run([job]))
    assert stopped.value.code == 130 and (tmp_path / "a.saved").exists()


def test_a_ray_dataset_gets_the_vectors_of_the_model_and_reasons_for_rows_without(
    cluster, tmp_path
):
    datasets = pytest.importorskip("ray.data")
    from tiny_folders import folder

    model = folder(tmp_path / "model", "bert", "Model")
    texts = ["the cat sat", "a b c", "on the mat " * 500]
    rows = datasets.from_items([{"id": n, "text": text} for n, text in enumerate(texts)])
    found = sorted(regard.predict_files(model, rows, "embed").take_all(), key=lambda row: row["id"])
    expected = regard.load(model).embed(texts[:2])
    for row, vector in zip(found, expected, strict=False):
        assert row["error"] is None and np.allclose(row["vector"], vector, atol=1e-6)
    assert (
        found[2]["vector"] is None and "tokens, but this model reads at most" in found[2]["error"]
    )
    with pytest.raises(ConfigError, match="has a column 'error'"):
        regard.predict_files(model, datasets.from_items([{"text": "a", "error": 1}]), "embed")


def test_more_gpus_than_a_machine_has_raise_an_error(cluster):
    with pytest.raises(ConfigError, match="needs 99 GPUs on one machine, but no machine"):
        list(make_executor("ray", 1).run([Job("example_jobs:facts", {}, gpus=99)]))


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.1:http"])
def test_a_malformed_address_or_a_missing_package_raises_an_error(address, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    if address:
        with pytest.raises((ConfigError, MissingExtra)):
            on_ray.connected(address)
        with pytest.raises(ConfigError, match="must be like HOST:10001"):
            on_ray._check_answers(f"ray://{address}")
    else:
        with pytest.raises(MissingExtra, match=r"pip install 'regard\[ray\]'"):
            on_ray.connected()


def test_an_address_where_nothing_listens_raises_an_error_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match=f"nothing answers at ray://127.0.0.1:{port}"):
        on_ray._check_answers(f"ray://127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("variable", "given", "called"),
    [
        ("HOST:PORT", "", "HOST:PORT"),  # not its Ray Client server
        ("auto", "", "auto"),
        ("ray://HOST:PORT", "", "ray://HOST:PORT"),
        ("127.0.0.1:6379", "HOST:PORT", "ray://HOST:PORT"),
        ("127.0.0.1:6379", "auto", "auto"),
        ("local", "", None),
        ("", "", None),
    ],
)
def test_the_variable_ray_address_means_what_it_means_to_ray(variable, given, called, monkeypatch):
    """None: no cluster is connected to, and one is started."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = f"127.0.0.1:{server.getsockname()[1]}"
        addresses: list[str] = []
        known = SimpleNamespace(
            __version__="2.60.0",
            is_initialized=lambda: False,
            init=lambda address, **options: addresses.append(address),
        )
        monkeypatch.setitem(sys.modules, "ray", known)
        monkeypatch.setattr(on_ray, "find_spec", lambda name: True)
        monkeypatch.setenv("RAY_ADDRESS", variable.replace("HOST:PORT", here))
        for name, value in on_ray.PRIVATE_SETTINGS.items():
            monkeypatch.setenv(name, value)
        assert on_ray._connected_to_existing(given.replace("HOST:PORT", here)) is known
        assert addresses == ([called.replace("HOST:PORT", here)] if called else [])


def test_a_cluster_is_not_started_where_ray_was_imported_before(monkeypatch):
    imported = type(sys)("ray")
    imported.__version__, imported.is_initialized = "2.60.0", lambda: False
    monkeypatch.setitem(sys.modules, "ray", imported)
    for name in ("RAY_ADDRESS", *on_ray.PRIVATE_SETTINGS):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"Call ray.init\(\) first, or do not import ray"):
        on_ray.connected()


def test_a_version_that_is_too_old_raises_an_error(monkeypatch):
    old = type(sys)("ray")
    old.__version__ = "2.9.3"
    monkeypatch.setitem(sys.modules, "ray", old)
    with pytest.raises(ConfigError, match=r"Ray 2.9.3 is too old: it must be at least 2.40"):
        on_ray.connected()


def test_a_lost_cluster_of_this_machine_is_started_again_and_another_one_is_named(monkeypatch):
    jobs = [Job("a:b", {}, name) for name in "xyz"]
    begun: list[list[str]] = []

    def results_until_lost(tasks, left, workers, restarts):
        begun.append([job.name for job in left])
        lost = len(left) > 1
        yield JobResult(left[0], 1)
        if lost:
            raise on_ray.ClusterLost

    stopped: list[bool] = []
    cluster = SimpleNamespace(shutdown=lambda: stopped.append(True))
    for name in ("connected", "_connected_to_existing"):
        monkeypatch.setattr(on_ray, name, lambda address="": cluster)
    monkeypatch.setattr(on_ray, "Tasks", lambda *given: None)
    monkeypatch.setattr(on_ray.ClusterResources, "of", lambda *given: None)
    monkeypatch.setattr(on_ray, "results_of", results_until_lost)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    heard = RecordingListener()
    assert [one.job.name for one in make_executor("ray", 1).run(jobs, heard)] == ["x", "y", "z"]
    assert begun == [["x", "y", "z"], ["y", "z"], ["z"]] and len(stopped) == 2
    assert "no machine of the Ray cluster is alive; it is started again" in heard.lines[0][1]
    with pytest.raises(RegardError, match="Run the same command again: it continues"):
        list(make_executor(ExecutorOptions("ray", ray_address="auto"), 1).run(jobs, heard))


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_a_cluster_whose_process_dies_while_it_starts_is_started_once_more(deaths, monkeypatch):
    """As Ray does: `init` raises an error, and leaves what runs until `shutdown`."""
    calls: list[str] = []

    def init(address, **options):
        assert calls[-1:] != ["init"], "processes of the first start were left"
        calls.append("init")
        if calls.count("init") <= deaths:
            raise RuntimeError("The current node timed out during startup.")

    cluster = SimpleNamespace(
        init=init, shutdown=lambda: calls.append("shutdown"), is_initialized=lambda: False
    )
    monkeypatch.setattr(on_ray, "_connected_to_existing", lambda address: cluster)
    if deaths < 2:
        assert on_ray.connected() is cluster
        assert calls == ["init", "shutdown"] * deaths + ["init"]
    else:
        with pytest.raises(RegardError, match=r"timed out.*same command again, which continues"):
            on_ray.connected()


def test_no_machine_that_is_alive_is_a_lost_cluster(monkeypatch):
    monkeypatch.setattr(on_ray, "CHECK_INTERVAL", 0.0)
    alive = True
    actor = SimpleNamespace(remote=lambda: None)
    remote = SimpleNamespace(options=lambda **given: actor)
    ray = SimpleNamespace(
        nodes=lambda: [{"Alive": False}, {"Alive": alive}],
        remote=lambda *given, **options: remote if given else lambda function: None,
    )
    tasks = on_ray.Tasks(ray, RecordingListener(), None)  # type: ignore[arg-type]
    tasks._check_cluster()
    alive = False
    with pytest.raises(on_ray.ClusterLost):
        tasks._check_cluster()
    with pytest.raises(on_ray.ClusterLost):
        on_ray.ClusterResources.of(SimpleNamespace(nodes=lambda: [{"Alive": False}]), 1)  # type: ignore[arg-type]
