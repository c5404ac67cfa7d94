"""Jobs on clusters: as tasks of Ray, and under Slurm by way of submitit.

    --executor ray      the cluster of RAY_ADDRESS, else one that is started on this machine
    --ray-address HOST:10001    the cluster whose Ray Client server listens there
    --ray-address auto          the cluster that was started on this machine (`ray start`)

Every job is a task with a process of its own, on any machine of the cluster that has the CPUs and
GPUs for it; Ray starts it again if it dies, and prints what it prints. The machines must have the
same version of Python, Ray and Regard, and must see the files under the same paths.

    --executor slurm

submitit and the jobs write into `slurm-jobs/` of the current folder, which all machines must see:
scripts, logs and results. Whether a job was lost is asked of `sacct`. If the process that waits for
the jobs is killed, the jobs continue: `scancel` ends them.
"""

import os
import signal
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import redirect_stdout
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

from regard.errors import ConfigError, MissingExtra, RegardError
from regard.executors import (
    RESTARTS,
    ExecutorOptions,
    Job,
    JobLost,
    Json,
    Log,
    print_line,
    value_of,
)
from regard.executors.local import available_cpus, call, job_variables

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


# -------------------------------------------------------------------------------------------- Slurm


SLURM_FOLDER = Path("slurm-jobs")
SLURM_MINUTES = 24 * 60  # minutes of a job, where no time is given
SIGNAL_SECONDS = 90  # before the time limit a job gets SIGUSR2, and saves
NEAR_TIME_LIMIT = "near_time_limit"


class SlurmExecutor:
    """Runs jobs under Slurm: an `Executor`.

    workers: the number of jobs at once.
    options: of sbatch; without a partition the cluster's default one.
    A job that has saved near its time limit is submitted again as often as that happens.
    """

    def __init__(self, workers: int, options: ExecutorOptions | None = None, log: Log = print_line):
        try:
            import submitit
        except ImportError as error:
            raise MissingExtra("submitit", "slurm", "Running jobs under Slurm") from error
        self.log = log
        self.options = _sbatch_options(options or ExecutorOptions("slurm"))
        self._submitit: Any = submitit
        try:
            self._submitter = submitit.SlurmExecutor(SLURM_FOLDER.absolute())
        except RuntimeError as error:
            raise RegardError(f"Slurm was not found: {error} Or use --executor local.") from None
        self._lock = Lock()  # of the submitter, whose parameters are those of the next job
        self._threads = ThreadPoolExecutor(workers)
        self._running: set[Any] = set()
        self._stopping = False

    def submit(self, job: Job) -> Future[Json]:
        """The value of a job, see `Executor`, or ConfigError where sbatch refuses it."""
        return self._threads.submit(self._run, job)

    def stop(self) -> None:
        """Stop all jobs, see `Executor`."""
        self._stopping = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for submitted in [*self._running]:
            submitted.cancel(check=False)
        self._threads.shutdown()

    def _run(self, job: Job) -> Json:
        """Submit a job until it answers."""
        errors, restarts = self._submitit.core.utils, 0
        while True:
            submitted = self._submit(job)
            self._running.add(submitted)
            if self._stopping:
                submitted.cancel(check=False)
            try:
                answer: dict[str, Any] = submitted.result()
            except (errors.UncompletedJobError, errors.FailedJobError):
                answer = {"stopped": 1}
            self._running.discard(submitted)
            if "stopped" not in answer or self._stopping:
                return value_of(answer)
            end = f"its Slurm job {submitted.job_id} has saved near its time limit"
            if NEAR_TIME_LIMIT not in answer:
                end = f"its Slurm job {submitted.job_id} was lost ({submitted.state}), see "
                end += str(submitted.paths.stderr)
                if restarts == RESTARTS:
                    raise JobLost(f"{end}, {restarts + 1} times" if restarts else end)
                restarts += 1
            self.log(job.name, f"{end}; it is submitted again")

    def _submit(self, job: Job) -> Any:
        """The submitted job.

        Raises:
            ConfigError: sbatch refuses the job, or `slurm-jobs/` cannot be written.
        """
        minutes = int(self.options["time"])
        seconds = min(SIGNAL_SECONDS, minutes * 20)  # at most a third of the time
        # Where the command itself runs in a job, the variables of that one are left out.
        with self._lock, self._submitit.helpers.clean_env():
            self._submitter.update_parameters(
                job_name=job.name.replace(" ", "-"),
                cpus_per_task=max(1, job.cpus),
                gpus_per_node=job.gpus or None,
                time=minutes,
                additional_parameters={"signal": f"USR2@{seconds}"} | self.options,
            )
            arguments = job.function, dict(job.arguments), max(1, job.cpus)
            try:
                return self._submitter.submit(call_job, *arguments)
            except (OSError, self._submitit.core.utils.FailedJobError) as error:
                raise ConfigError(f"{job.name} could not be submitted: {error}") from error


def _sbatch_options(given: ExecutorOptions) -> dict[str, Any]:
    """The options of sbatch, by their names there; True for one without a value."""
    parts = (text.lstrip("-").partition("=") for text in given.sbatch or ())
    more = {name.replace("_", "-"): value or True for name, _, value in parts}
    named = {"partition": given.partition, "account": given.account}
    named = {name: value for name, value in named.items() if value}
    return {"time": given.time or SLURM_MINUTES, **more, **named}


def call_job(function: str, arguments: Mapping[str, Json], threads: int) -> dict[str, Json]:
    """What a job does where Slurm has started it; returns what `call` returns.

    Near the time limit, at SIGUSR2, the job gets SIGTERM, so that it saves. One that was stopped
    otherwise gives no result: the cluster may start the same job again.
    """
    os.environ.update(job_variables(threads))
    near_time_limit = False

    def stop(number: int, frame: object) -> None:
        nonlocal near_time_limit
        near_time_limit = True
        print("the time limit is near: it saves and ends", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

    # submitit's handlers ignore SIGTERM, and at SIGUSR2 raise an error or requeue the job.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, stop)
    answer = call(function, arguments)
    if "stopped" in answer and not near_time_limit:
        os._exit(int(str(answer["stopped"])))
    return {**answer, NEAR_TIME_LIMIT: True} if near_time_limit else answer
