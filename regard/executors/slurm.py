"""Jobs under Slurm, by way of submitit.

    slurm                                       the cluster's default partition
    slurm://PARTITION
    slurm://PARTITION?time=720&account=lab      further options of sbatch; `time` in minutes

The folder `slurm-jobs/` of the current folder, which all machines must see, has what submitit and
the jobs write. Where the process that waits for them is killed, jobs go on: `scancel` ends them.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from regard.errors import ConfigError, MissingExtra, RegardError
from regard.executors.local import RESTARTS, thread_variables
from regard.executors.protocol import (
    Job,
    JobListener,
    JobResult,
    Json,
    PrintedLog,
    sending_to,
)
from regard.executors.worker import call
from regard.training.interrupt import Interrupted, Interruption, Stopped

FOLDER = Path("slurm-jobs")
PAUSE = 2.0  # seconds between two looks at the jobs
TIME = 24 * 60  # minutes of a job, where no time is given


class SlurmExecutor:
    """Runs jobs under Slurm: an `Executor`.

    workers: how many at once.
    address: PARTITION?option=value&...; options of sbatch, with underscores.
    restarts: how often a job is submitted again that was lost, preempted or out of time.
    cluster: "local" runs the jobs in processes of this machine, for tests.
    """

    def __init__(
        self,
        workers: int,
        address: str = "",
        *,
        restarts: int = RESTARTS,
        cluster: str = "slurm",
        pause: float = PAUSE,
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
                f"there is no Slurm here: {error}. Start this on a machine that submits to a "
                "cluster, or work with --on local."
            ) from None
        self.options = _options(address)

    def run(
        self, jobs: Sequence[Job], listener: JobListener | None = None
    ) -> Generator[JobResult, None, None]:
        """The results as jobs end; see `Executor.run`."""
        told = listener or PrintedLog()
        waiting = deque((job, 0) for job in jobs)  # with the number of its restarts
        running: list[_Submitted] = []
        with Interruption() as interruption:
            try:
                while waiting or running:
                    while waiting and len(running) < self.workers:
                        running.append(self._submit(*waiting.popleft()))
                    with interruption.leaving_at_once():
                        time.sleep(self.pause)
                    for one in [one for one in running if one.ended(told)]:
                        running.remove(one)
                        if one.answer is not None:
                            answer = one.answer
                            yield JobResult(one.job, answer.get("value"), answer.get("error", ""))
                        elif one.restarts < self.restarts:
                            told.log(one.job, f"{one.end}; it is submitted again")
                            waiting.appendleft((one.job, one.restarts + 1))
                        else:
                            yield JobResult(one.job, error=f"{one.end}, {one.restarts + 1} times")
            except Stopped:
                _stop(running, told, self.pause)
                raise Interrupted("stopped: all jobs have ended", interruption.code) from None
            finally:
                _stop(running, told, self.pause)

    def _submit(self, job: Job, restarts: int) -> _Submitted:
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
        raise ConfigError(f"`time` must be a number of minutes, but is {options['time']!r}.")
    return {**options, **({"partition": partition} if partition else {})}


class _Submitted:
    """A job that was submitted, and what it has said."""

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
        """Pass on what the job has said since; whether it has ended."""
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


def _stop(running: list[_Submitted], listener: JobListener, pause: float) -> None:
    """Cancel the jobs, which get SIGTERM, and wait for them; another Ctrl-C waits no longer."""
    for one in running:
        one.submitted.cancel(check=False)
    while running:
        running[:] = [one for one in running if not one.ended(listener)]
        if running:
            time.sleep(pause)


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
    os.environ.update(thread_variables(threads))
    with open(messages, "a", encoding="utf-8") as file:

        def write(message: Json) -> None:
            file.write(json.dumps(message) + "\n")
            file.flush()

        with sending_to(write):
            return call(function, arguments)
