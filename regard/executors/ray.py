"""Jobs as tasks of a Ray cluster: one that exists, or one that is started on this machine.

    --executor ray      the cluster of RAY_ADDRESS, else one that is started on this machine
    --ray-address HOST:10001    the cluster whose Ray Client server listens there
    --ray-address auto          the cluster that was started on this machine (`ray start`)

Every job is a task with a process of its own, on any machine of the cluster that has the CPUs and
GPUs for it; Ray starts it again if it dies, and prints what it prints. The machines must have the
same version of Python, Ray and Regard, and must see the files under the same paths.
"""

import os
import sys
from collections.abc import Mapping
from concurrent.futures import Future, wait
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any

from regard.errors import ConfigError, MissingExtra
from regard.executors.local import available_cpus, job_variables
from regard.executors.protocol import (
    RESTARTS,
    ExecutorOptions,
    Job,
    JobLost,
    Json,
    Log,
    print_line,
    value_of,
)
from regard.executors.worker import call

STOP_TIMEOUT = 60.0  # seconds for tasks to save and end
# Of a cluster that is started here: no reports of its use, and ports of the loopback address alone.
# Ray reads them when it is imported.
PRIVATE_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
LOCAL: dict[str, Any] = {
    "object_store_memory": 2**28,  # jobs need few bytes of it
    "include_dashboard": False,
    "_node_ip_address": "127.0.0.1",
}


def connected(address: str = "") -> ModuleType:
    """The module `ray`, connected to a cluster; a connection that exists already is used.

    address: HOST:PORT of a cluster's Ray Client server, or "auto"; "": RAY_ADDRESS, which may be
        whatever Ray itself takes (ray://HOST:10001, auto, HOST:6379 of a cluster to which this
        machine belongs), else a cluster that is started on this machine.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: no cluster answers, or one cannot be started.
    """
    chosen = address or os.environ.get("RAY_ADDRESS", "") or "local"
    if address not in ("", "auto"):
        chosen = f"ray://{address.removeprefix('ray://')}"
    if chosen == "local":
        os.environ.update(PRIVATE_SETTINGS)
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray", "The executor ray") from None
    if ray.is_initialized():
        return ray
    local = {"num_cpus": available_cpus(), **LOCAL} if chosen == "local" else {}
    try:
        ray.init(chosen, logging_level="error", **local)
    except Exception as error:  # of several types: no cluster, another version of Python or Ray
        ray.shutdown()
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ConfigError(
            f"cannot connect to a Ray cluster ({chosen}): {reason}. All machines need the same "
            f"versions of Python and Ray; this one has Ray {ray.__version__}. If the cluster "
            "requires a token, set RAY_AUTH_MODE=token."
        ) from None
    return ray


class RayExecutor:
    """Runs jobs as tasks of a Ray cluster: an `Executor`.

    workers: the number of jobs at once.  options: with the address, see `connected`.

    Raises:
        Errors of `connected`.
    """

    def __init__(self, workers: int, options: ExecutorOptions | None = None, log: Log = print_line):
        self.ray = connected("" if options is None else options.ray_address)
        machines = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        self._cpus = max((machine.get("CPU", 0.0) for machine in machines), default=1.0)
        share = sum(machine.get("CPU", 0.0) for machine in machines) / workers
        self._share = min(self._cpus, float(int(share)) if share >= 1 else share)
        self._gpus = max((machine.get("GPU", 0.0) for machine in machines), default=0.0)
        # A process for each task, which ends with it: memory and threads are those of one job.
        self._call = self.ray.remote(max_calls=1, max_retries=RESTARTS)(run_task)
        self._running: dict[Future[Json], Any] = {}  # future -> reference of its task

    def submit(self, job: Job) -> Future[Json]:
        """The value of a job, see `Executor`.

        Raises:
            ConfigError: no machine has the GPUs.
        """
        if job.gpus > self._gpus:
            raise ConfigError(
                f"{job.name} needs {job.gpus} GPUs on one machine, but no machine of the Ray "
                f"cluster has more than {self._gpus:g}."
            )
        cpus = min(float(job.cpus), self._cpus) if job.cpus else self._share
        environment = job_variables(job.cpus or max(1, int(self._share)))
        task = self._call.options(num_cpus=cpus, num_gpus=job.gpus, name=job.name)
        reference = task.remote(job.function, dict(job.arguments), environment, os.getcwd())
        result: Future[Json] = Future()
        self._running[result] = reference

        def end(answered: Future[dict[str, Any]]) -> None:
            self._running.pop(result, None)
            try:
                result.set_result(value_of(answered.result()))
            except self.ray.exceptions.RayError as error:
                problem = f"its process or machine died: {str(error).strip()}"
                result.set_exception(JobLost(problem.split("\n")[0]))
            except BaseException as error:
                result.set_exception(error)

        reference.future().add_done_callback(end)
        return result

    def stop(self) -> None:
        """Stop all jobs, see `Executor`."""
        running = dict(self._running)
        for reference in running.values():
            self.ray.cancel(reference)  # raises KeyboardInterrupt in the task, which saves
        wait(running, STOP_TIMEOUT)
        for reference in [*self._running.values()]:
            self.ray.cancel(reference, force=True)


def run_task(
    function: str, arguments: Mapping[str, Json], environment: Mapping[str, str], folder: str
) -> dict[str, Json]:
    """The task of a job in a process of the cluster; returns what `call` returns."""
    os.environ.update(environment)
    if not os.path.isdir(folder):
        return {
            "error": f"the folder {folder} does not exist on {os.uname().nodename}: all machines "
            "of a cluster must see the files under the same paths, on a network disk"
        }
    os.chdir(folder)
    with redirect_stdout(sys.stderr):  # Ray prints it where the command prints its result
        return call(function, arguments)
