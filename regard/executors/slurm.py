"""Jobs under Slurm, by way of submitit.

    slurm                                       the cluster's default partition
    slurm://PARTITION
    slurm://PARTITION?time=720&account=lab      further options of sbatch; `time` in minutes

submitit and the jobs write into `slurm-jobs/` of the current folder, which all machines must see.
If the process that waits for the jobs is killed, the jobs continue: `scancel` ends them.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from regard.errors import ConfigError, MissingExtra, RegardError
from regard.executors.local import job_variables
from regard.executors.protocol import (
    Job,
    JobListener,
    JobResult,
    Json,
    PrintedLog,
    sending_to,
)
from regard.executors.restarting import RESTARTS, Ended, results_of
from regard.executors.worker import call

FOLDER = Path("slurm-jobs")
POLL_INTERVAL = 2.0  # seconds between two checks of the jobs
TIME = 24 * 60  # minutes of a job, where no time is given


class SlurmExecutor:
    """Runs jobs under Slurm: an `Executor`.

    workers: the number of jobs at once.
    address: PARTITION?option=value&...; options of sbatch, with underscores.
    restarts: how often a job is submitted again that died, was preempted or ran out of time.
    cluster: "local" runs the jobs in processes of this machine, for tests.
    """

    def __init__(
        self,
        workers: int,
        address: str = "",
        *,
        restarts: int = RESTARTS,
        cluster: str = "slurm",
        pause: float = POLL_INTERVAL,
    ):
        try:
            import submitit
        except ImportError as error:
            raise MissingExtra("submitit", "slurm", "Running jobs under Slurm") from error
        self.workers, self.restarts, self.pause = workers, restarts, pause
        try:
            self.submitter = submitit.AutoExecutor(FOLDER.absolute(), cluster=cluster)
        except RuntimeError as error:
            raise RegardError(
                f"Slurm was not found on this machine ({error}). Run the command on a login node "
                "of a Slurm cluster, or use --on local."
            ) from None
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise RegardError(
                "`sbatch` was not found on this machine, so jobs cannot be submitted. Run the "
                "command on a login node of a Slurm cluster, or use --on local."
            )
        self.options = _options(address)

    def run(
        self, jobs: Sequence[Job], listener: JobListener | None = None
    ) -> Generator[JobResult, None, None]:
        """The results as jobs end; see `Executor.run`."""
        running = _Running(listener or PrintedLog(), self.submit, self.pause)
        yield from results_of(running, jobs, self.workers, self.restarts)

    def submit(self, job: Job, restarts: int) -> _Submitted:
        """Submit a job.

        Raises:
            ConfigError: sbatch does not take an option.
        """
        self.submitter.update_parameters(
            name=job.name.replace(" ", "-"),
            cpus_per_task=max(1, job.cpus),
            gpus_per_node=job.gpus,
            timeout_min=int(self.options.get("time", TIME)),
            **{f"slurm_{name}": v for name, v in self.options.items() if name != "time"},
        )
        try:
            return _Submitted(job, restarts, self.submitter)
        except Exception as error:  # sbatch refuses an option
            raise ConfigError(f"{job.name} could not be submitted: {error}") from error


def _options(address: str) -> dict[str, str]:
    """The options of sbatch in an address.

    Raises:
        ConfigError: the time is no number of minutes.
    """
    partition, _, query = address.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if not options.get("time", "1").isdecimal():
        raise ConfigError(
            f"`time` in --on slurm://...?time=MINUTES must be a whole number of minutes, but is "
            f"{options['time']!r}."
        )
    return {**options, **({"partition": partition} if partition else {})}


class _Submitted:
    """A submitted job and the files that it writes."""

    def __init__(self, job: Job, restarts: int, submitter: Any):
        self.job, self.restarts = job, restarts
        self.answer: Mapping[str, Any] | None = None
        self.messages = FOLDER.absolute() / f"messages-{os.getpid()}-{id(self)}.jsonl"
        self.messages.parent.mkdir(exist_ok=True)
        self.messages.touch()
        self.submitted = submitter.submit(
            call_job, job.function, dict(job.arguments), max(1, job.cpus), str(self.messages)
        )
        paths = self.submitted.paths
        self.tails = [_Tail(self.messages), _Tail(paths.stdout), _Tail(paths.stderr)]
        self.end = "it was lost"

    def ended(self, listener: JobListener) -> bool:
        """Pass new messages and lines to the listener; whether the job has ended."""
        done: bool = self.submitted.done()
        self.read(listener)
        if not done:
            return False
        try:
            answer: dict[str, Any] = self.submitted.result()
            self.answer = None if "stopped" in answer else answer
        except Exception:  # submitit: no result; the state says why
            self.end = f"its Slurm job {self.submitted.job_id} was lost ({self.submitted.state})"
        self.read(listener)
        for tail in self.tails:
            tail.close()
        self.messages.unlink(missing_ok=True)
        return True

    def read(self, listener: JobListener) -> None:
        """Pass on the lines that are new."""
        messages, *logs = self.tails
        for line in messages.lines():
            listener.message(self.job, json.loads(line))
        for tail in logs:
            for line in tail.lines():
                if not line.startswith("submitit "):
                    listener.log(self.job, line)


class _Running:
    """The submitted jobs that have not ended, which are `RunningJobs`.

    submit: from a job and the number of its restarts.  pause: seconds between two checks.
    """

    def __init__(
        self, listener: JobListener, submit: Callable[[Job, int], _Submitted], pause: float
    ):
        self.listener, self.submit, self.pause = listener, submit, pause
        self.submitted: list[_Submitted] = []

    def __len__(self) -> int:
        return len(self.submitted)

    def start(self, job: Job, restarts: int) -> None:
        self.submitted.append(self.submit(job, restarts))

    def wait(self) -> None:
        time.sleep(self.pause)

    def ended(self) -> list[Ended]:
        ended = [one for one in self.submitted if one.ended(self.listener)]
        self.submitted = [one for one in self.submitted if one not in ended]
        return [(one.job, one.restarts, one.answer or one.end) for one in ended]

    def stop(self) -> None:
        """Cancel the jobs, which get SIGTERM, and wait for them; another Ctrl-C waits no longer."""
        for one in self.submitted:
            one.submitted.cancel(check=False)
        while self.submitted:
            self.ended()
            if self.submitted:
                time.sleep(self.pause)


class _Tail:
    """The lines that are added to a file, which may not be there yet."""

    def __init__(self, path: Path):
        self.path, self.rest = path, b""
        self.file: Any = None

    def lines(self) -> list[str]:
        """The whole lines since the last call."""
        if self.file is None:
            if not self.path.exists():
                return []
            self.file = self.path.open("rb")
        *whole, self.rest = (self.rest + self.file.read()).split(b"\n")
        return [line.decode(errors="backslashreplace") for line in whole]

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def call_job(
    function: str, arguments: Mapping[str, Json], threads: int, messages: str
) -> dict[str, Json]:
    """What a job does where Slurm has started it: the answer of `regard.executors.worker.call`."""
    os.environ.update(job_variables(threads))
    with open(messages, "a", encoding="utf-8") as file:

        def write(message: Json) -> None:
            file.write(json.dumps(message) + "\n")
            file.flush()

        with sending_to(write):
            return call(function, arguments)
