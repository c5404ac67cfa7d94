"""Jobs on a Ray cluster that is started on this machine: what they return, say, survive."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from regard.errors import ConfigError, MissingExtra, RegardError
from regard.executors import Job, make_executor, results_of
from regard.executors.clusters import connected
from regard.training.interrupt import Interrupted

HERE = str(Path(__file__).parent)


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
        ray = connected()
        yield ray
        ray.shutdown()


def test_jobs_return_values_and_errors_and_lost_ones_start_again(cluster, tmp_path):
    jobs = [
        Job("example_jobs:double", {"number": 4}, "double"),
        Job("example_jobs:fail", {"path": "p"}, "fail"),
        Job("example_jobs:facts", {}, "facts", cpus=3),
        Job("example_jobs:die_at_first", {"folder": str(tmp_path), "times": 1}, "die"),
    ]
    results = {job.name: future for job, future in results_of(make_executor("ray", 2), jobs)}
    assert results["double"].result() == 8 and results["die"].result() == 2
    with pytest.raises(RegardError, match="p:3: is wrong."):
        results["fail"].result()
    assert results["facts"].result()["OMP_NUM_THREADS"] == "3"
    with pytest.raises(ConfigError, match="needs 99 GPUs on one machine, but no machine"):
        make_executor("ray", 1).submit(Job("example_jobs:facts", {}, gpus=99))


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
        time.sleep(0.5)  # it listens for signals
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    job = Job("example_jobs:work", {"folder": str(tmp_path), "name": "a"})
    with pytest.raises(Interrupted) as stopped:
        list(results_of(make_executor("ray", 1), [job]))
    assert stopped.value.code == 130 and (tmp_path / "a.saved").exists()


def test_a_missing_package_raises_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'regard\[ray\]'"):
        connected()
