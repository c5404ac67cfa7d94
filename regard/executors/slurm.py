"""Jobs under Slurm, by way of submitit.

submitit and the jobs write into `slurm-jobs/` of the current folder, which all machines must see.
A job's messages and its answer are lines of JSON in a file there. Whether a job is pending, runs or
was lost is asked of `squeue`: submitit asks `sacct`, which many clusters lack. If the process that
waits for the jobs is killed, the jobs continue: `scancel` ends them.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from regard.errors import ConfigError, MissingExtra, RegardError
from regard.executors.local import job_variables
from regard.executors.protocol import (
    ExecutorOptions,
    Job,
    JobListener,
    JobResult,
    Json,
    PrintedLog,
    sending_to,
)
from regard.executors.restarting import RESTARTS, Ended, results_of
from regard.executors.slurm_queue import (
    NEVER_STARTS,
    ControllerSilent,
    QueuedJob,
    cancel,
    is_silent,
    outside_jobs,
    queued_jobs,
)
from regard.executors.worker import call

FOLDER = Path("slurm-jobs")
POLL_INTERVAL = 2.0  # seconds between two looks at the files of the jobs
QUEUE_POLLS = 5  # looks at the files between two calls of squeue, which the whole cluster shares
STOP_TIMEOUT = 120.0  # seconds for cancelled jobs to end
TIME = 24 * 60  # minutes of a job, where no time is given
SIGNAL_SECONDS = 90  # before the time limit a job gets SIGUSR2, and saves


class SlurmExecutor:
    """Runs jobs under Slurm: an `Executor`.

    workers: the number of jobs at once.
    options: of sbatch; without a partition the cluster's default one.
    restarts: how often a job is submitted again that died or was cancelled. One that has saved near
        its time limit is submitted again as often as that happens.
    pause: seconds between two looks at the files of the jobs.
    """

    def __init__(
        self,
        workers: int,
        options: ExecutorOptions | None = None,
        *,
        restarts: int = RESTARTS,
        pause: float = POLL_INTERVAL,
    ):
        try:
            import submitit
        except ImportError as error:
            raise MissingExtra("submitit", "slurm", "Running jobs under Slurm") from error
        if missing := [one for one in ("sbatch", "srun", "squeue") if not shutil.which(one)]:
            raise RegardError(
                f"Slurm was not found on this machine: there is no `{missing[0]}`. Run the command "
                "on a login node of a Slurm cluster, or use --executor local."
            )
        self.workers, self.restarts, self.pause = workers, restarts, pause
        self.options = _options(options or ExecutorOptions("slurm"))
        self.folder = FOLDER.absolute()
        self.submitter = submitit.SlurmExecutor(self.folder)

    def run(
        self, jobs: Sequence[Job], listener: JobListener | None = None
    ) -> Generator[JobResult, None, None]:
        """The results as jobs end; see `Executor.run`.

        Raises:
            ConfigError: sbatch refuses a job, or Slurm would never start one.
            RegardError: nothing can be written into `slurm-jobs/`.
        """
        running = _Running(listener or PrintedLog(), self.submit, self.pause)
        yield from results_of(running, jobs, self.workers, self.restarts)

    def submit(self, job: Job, restarts: int) -> _Submitted:
        """Submit a job.

        Raises:
            ControllerSilent: the controller does not answer.
            ConfigError: sbatch refuses the job.
            RegardError: a file cannot be written.
        """
        minutes = int(self.options["time"])
        seconds = min(SIGNAL_SECONDS, minutes * 20)  # at most a third of the time
        self.submitter.update_parameters(
            job_name=job.name.replace(" ", "-"),
            cpus_per_task=max(1, job.cpus),
            gpus_per_node=job.gpus or None,
            time=minutes,
            additional_parameters={"signal": f"USR2@{seconds}"} | self.options,
        )
        try:
            return _Submitted(job, restarts, self.submitter)
        except OSError as error:
            raise RegardError(
                f"{self.folder} cannot be written: {error.strerror or error}. Under Slurm the jobs "
                "and their logs need it: run the command in a folder that you can write into, and "
                "that all machines of the cluster see."
            ) from None
        except Exception as error:  # sbatch has failed
            if is_silent(str(error)):
                raise ControllerSilent(f"{job.name} could not be submitted: {error}") from None
            raise ConfigError(f"{job.name} could not be submitted: {error}") from error


def _options(given: ExecutorOptions) -> dict[str, Any]:
    """The options of sbatch, by their names there; True for one without a value.

    Raises:
        ConfigError: an option cannot be used.
    """
    parts = (text.lstrip("-").partition("=") for text in given.sbatch)
    more = {name.replace("_", "-"): value or True for name, _, value in parts}
    if wrong := {"array", "clusters", "nodes", "ntasks", "output", "error"} & more.keys():
        raise ConfigError(
            f"sbatch's option `{min(wrong)}` cannot be set: each worker is one job, with one "
            "process on a machine of the cluster that `squeue` shows."
        )
    named = {"partition": given.partition, "account": given.account}
    return {"time": given.time or TIME} | more | {name: one for name, one in named.items() if one}


class _Submitted:
    """A submitted job, the files that it writes, and what `squeue` has said of it."""

    def __init__(self, job: Job, restarts: int, submitter: Any):
        self.job, self.restarts = job, restarts
        self.answer: Mapping[str, Any] = {}  # see `regard.executors.worker.call`
        self.queued = QueuedJob("PENDING")
        self.times_ended = 0  # how often squeue has said so, one call after the other
        self.messages = submitter.folder / f"messages-{os.getpid()}-{id(self)}.jsonl"
        self.messages.parent.mkdir(parents=True, exist_ok=True)
        self.messages.touch()
        given = job.function, dict(job.arguments), max(1, job.cpus), str(self.messages)
        try:
            with outside_jobs(), redirect_stderr(io.StringIO()):  # submitit prints what it raises
                submitted = submitter.submit(call_job, *given)
        except BaseException:
            self.messages.unlink()
            raise
        self.number: str = submitted.job_id
        self.output = Path(submitted.paths.stdout)
        self.tails = [_Tail(self.messages), _Tail(self.output), _Tail(submitted.paths.stderr)]

    @property
    def answered(self) -> bool:
        """Whether the function has returned or raised an error; not where it was stopped: the
        cluster may requeue the same job."""
        return "value" in self.answer or "error" in self.answer

    @property
    def end(self) -> str:
        """How it ended, if it gave no answer."""
        if self.near_time_limit:
            return f"its Slurm job {self.number} has saved near its time limit"
        text = f"its Slurm job {self.number} was lost ({self.queued.state}"
        if self.queued.reason not in ("", "None"):
            text += f", {self.queued.reason}"
        if not self.output.exists():
            folder = self.output.parent
            text += f"; it has written no log: do all machines see {folder}, and may write into it?"
        return f"{text})"

    @property
    def near_time_limit(self) -> bool:
        return bool(self.answer.get("near_time_limit"))

    def read(self, listener: JobListener) -> None:
        """Pass new messages and lines to the listener."""
        messages, *logs = self.tails
        for line in filter(None, messages.lines()):
            found = json.loads(line)
            if "message" in found:
                listener.message(self.job, found["message"])
            else:
                self.answer = found
        for tail in logs:
            for line in tail.lines():
                if not line.startswith("submitit "):
                    listener.log(self.job, line)

    def look(self, queued: QueuedJob, listener: JobListener) -> None:
        """Note what squeue says; the listener hears why the job is pending."""
        before, self.queued = self.queued, queued
        self.times_ended = self.times_ended + 1 if queued.ended else 0
        if queued.state != "PENDING":
            return
        self.answer = {}  # the cluster has requeued it
        in_line = {"Resources", "Priority"}
        told = {queued.reason, before.reason} <= in_line or queued == before
        if queued.reason not in ("", "None") and not told:
            listener.log(self.job, f"its Slurm job {self.number} is pending ({queued.reason})")

    def check_can_start(self) -> None:
        """Raises:
        ConfigError: it is pending, and would never start.
        """
        hint = NEVER_STARTS.get(self.queued.reason)
        if hint and self.queued.state == "PENDING":
            raise ConfigError(
                f"{self.job.name}: Slurm would never start it ({self.queued.reason}). {hint}"
            )

    def ended(self) -> bool:
        """Whether it has ended; without an answer after two calls of squeue, as a network disk
        may show its last lines late."""
        return self.answered or self.times_ended >= 2


class _Running:
    """The submitted jobs that have not ended, which are `RunningJobs`.

    submit: from a job and the number of its restarts.  pause: seconds between two looks.
    """

    def __init__(
        self, listener: JobListener, submit: Callable[[Job, int], _Submitted], pause: float
    ):
        self.listener, self.submit, self.pause = listener, submit, pause
        self.submitted: list[_Submitted] = []
        self.waiting: list[tuple[Job, int]] = []  # for the controller, to be submitted
        self._looks = 0
        self._silent = self._begun = False

    def __len__(self) -> int:
        return len(self.submitted) + len(self.waiting)

    def start(self, job: Job, restarts: int) -> None:
        try:
            self.submitted.append(self.submit(job, restarts))
        except ControllerSilent as error:
            if not self._begun:
                raise
            self._note_silence(job, error)
            self.waiting.append((job, restarts))
        self._begun = True

    def wait(self) -> None:
        time.sleep(self.pause)

    def ended(self) -> list[Ended]:
        for one in self.submitted:
            one.read(self.listener)
        self._looks += 1
        if self._looks % QUEUE_POLLS == 0 and not all(one.answered for one in self.submitted):
            self._look()
            for one in self.submitted:
                one.check_can_start()
        if self.waiting and not self._silent:
            waiting, self.waiting = self.waiting, []
            for job, restarts in waiting:
                self.start(job, restarts)
        ended = [one for one in self.submitted if one.ended()]
        self.submitted = [one for one in self.submitted if one not in ended]
        for one in ended:
            one.read(self.listener)
            one.messages.unlink(missing_ok=True)
        return [self._ended(one) for one in ended]

    def _ended(self, one: _Submitted) -> Ended:
        # A job that saves near its time limit goes on when it is submitted again: no death.
        restarts = one.restarts - one.near_time_limit
        return one.job, restarts, one.answer if one.answered else one.end

    def _look(self) -> None:
        """Ask squeue."""
        try:
            queue = queued_jobs()
        except ControllerSilent as error:
            return self._note_silence(self.submitted[0].job, error)
        self._silent = False
        gone = QueuedJob("CANCELLED", "squeue no longer shows it")
        for one in self.submitted:
            if not one.answered:
                one.look(queue.get(one.number, gone), self.listener)

    def _note_silence(self, job: Job, error: ControllerSilent) -> None:
        if not self._silent:
            text = f"Slurm's controller does not answer ({error}). Jobs that run continue."
            self.listener.log(job, text)
        self._silent = True

    def stop(self) -> None:
        """Cancel the jobs, which get SIGTERM, and wait for them; another Ctrl-C waits no longer."""
        self.waiting = []
        until = time.monotonic() + STOP_TIMEOUT
        cancelled = False
        while self.submitted and time.monotonic() < until:
            cancelled = cancelled or self._cancel()
            for one in self.submitted:
                one.read(self.listener)
            if cancelled:
                self._look()
            left = [one for one in self.submitted if not (one.answer or one.queued.ended)]
            for one in self.submitted:
                if one not in left:
                    one.messages.unlink(missing_ok=True)
            self.submitted = left
            if left:
                time.sleep(self.pause)
        if self.submitted:
            numbers = " ".join(one.number for one in self.submitted)
            text = f"the Slurm jobs have not ended yet. To end them: scancel {numbers}"
            self.listener.log(self.submitted[0].job, text)
            self.submitted = []

    def _cancel(self) -> bool:
        """Cancel all jobs; whether the controller has answered."""
        try:
            cancel([one.number for one in self.submitted])
        except ControllerSilent as error:
            self._note_silence(self.submitted[0].job, error)
            return False
        return True


class _Tail:
    """The lines that are added to a file, which may not be there yet.

    It is opened each time: a network disk shows what another machine has written when the file is
    opened after that.
    """

    def __init__(self, path: Path):
        self.path, self.rest, self.position = path, b"", 0

    def lines(self) -> list[str]:
        """The whole lines since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.position)
            new = file.read()
        self.position += len(new)
        *whole, self.rest = (self.rest + new).split(b"\n")
        return [line.decode(errors="backslashreplace") for line in whole]


def call_job(function: str, arguments: Mapping[str, Json], threads: int, messages: str) -> None:
    """What a job does where Slurm has started it: write messages and an answer, as lines.

    Near the time limit, at SIGUSR2, the job gets SIGTERM, so that it saves.
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
    with open(messages, "a", encoding="utf-8") as file:

        def write(line: Json) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        file.write("\n")  # ends the line that a killed job has begun, before it was requeued
        with sending_to(lambda message: write({"message": message})):
            answer = call(function, arguments)
        if near_time_limit and "stopped" in answer:
            answer["near_time_limit"] = True
        write(answer)
