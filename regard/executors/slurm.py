"""Jobs under Slurm, by way of submitit.

submitit and the jobs write into `slurm-jobs/` of the current folder, which all machines must see:
scripts, logs and results. Whether a job was lost is asked of `sacct`. If the process that waits for
the jobs is killed, the jobs continue: `scancel` ends them.
"""

import os
import shutil
import signal
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from regard.errors import ConfigError, MissingExtra, RegardError
from regard.executors.local import job_variables
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

FOLDER = Path("slurm-jobs")
TIME = 24 * 60  # minutes of a job, where no time is given
SIGNAL_SECONDS = 90  # before the time limit a job gets SIGUSR2, and saves
NEAR_TIME_LIMIT = "near_time_limit"


class SlurmExecutor:
    """Runs jobs under Slurm: an `Executor`.

    workers: the number of jobs at once.
    options: of sbatch; without a partition the cluster's default one.
    restarts: how often a job is submitted again that died or was cancelled. One that has saved near
        its time limit is submitted again as often as that happens.
    """

    def __init__(
        self,
        workers: int,
        options: ExecutorOptions | None = None,
        log: Log = print_line,
        *,
        restarts: int = RESTARTS,
    ):
        try:
            import submitit
        except ImportError as error:
            raise MissingExtra("submitit", "slurm", "Running jobs under Slurm") from error
        if missing := [name for name in ("sbatch", "srun") if not shutil.which(name)]:
            raise RegardError(
                f"Slurm was not found on this machine: there is no `{missing[0]}`. Run the command "
                "on a login node of a Slurm cluster, or use --executor local."
            )
        self.log, self.restarts = log, restarts
        self.options = _sbatch_options(options or ExecutorOptions("slurm"))
        self._submitit: Any = submitit
        self._submitter = submitit.SlurmExecutor(FOLDER.absolute())
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
                if restarts == self.restarts:
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
    parts = (text.lstrip("-").partition("=") for text in given.sbatch)
    more = {name.replace("_", "-"): value or True for name, _, value in parts}
    named = {"partition": given.partition, "account": given.account}
    named = {name: value for name, value in named.items() if value}
    return {"time": given.time or TIME, **more, **named}


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
