"""A job, its result, and the protocol of executors, which run jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Protocol, TypeAlias

from regard.errors import ConfigError, RegardError

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"


@dataclass(frozen=True)
class Job:
    """A call of a function in a process of its own.

    function: "package.module:name"; it takes `arguments` as keywords and returns what JSON can
        hold.
    name: what messages call it.
    cpus: the threads that it may use; 0: an equal share of the machine's for each worker.
    gpus: how many GPUs it sees; with 0 the executor hides none and reserves none.
    """

    function: str
    arguments: Mapping[str, Json]
    name: str = "job"
    cpus: int = 0
    gpus: int = 0


@dataclass(frozen=True)
class JobResult:
    """The value that a job returned, or an error.

    error: the message of the function's error, or how its process died; "" where there is a value.
    lost: whether the process died too often, without an error of the function.
    """

    job: Job
    value: Json = None
    error: str = ""
    lost: bool = False

    def checked(self) -> Json:
        """The value.

        Raises:
            RegardError: the job has failed.
        """
        if self.error:
            raise RegardError(f"{self.job.name}: {self.error}")
        return self.value


@dataclass(frozen=True)
class ExecutorOptions:
    """Where jobs run.

    name: of `regard.executors.EXECUTORS`: "local", "slurm" or "ray".
    partition, time, account: of Slurm; `time` in minutes.
    sbatch: further options of Slurm's sbatch, as NAME=VALUE, or NAME where it has no value.
    ray_address: HOST:PORT of a cluster's Ray Client server, or "auto"; "": see
        `regard.executors.ray.connected`.

    Raises:
        ConfigError: an option does not belong to the executor, or `time` is below 1.
    """

    name: str = "local"
    partition: str = ""
    time: int | None = None
    account: str = ""
    sbatch: tuple[str, ...] = ()
    ray_address: str = ""

    def __post_init__(self) -> None:
        for field in fields(self)[1:]:
            owner = "ray" if field.name == "ray_address" else "slurm"
            if getattr(self, field.name) != field.default and self.name != owner:
                raise ConfigError(
                    f"`{field.name}` is an option of the executor {owner}, but the executor is "
                    f"{self.name}. Leave it out, or choose the other: --executor {owner}."
                )
        if self.time is not None and self.time < 1:
            raise ConfigError(f"`time` must be at least 1 (minute), but is {self.time}.")


class JobListener(Protocol):
    """Receives the messages and printed lines of running jobs.

    It is called in the process that called `Executor.run`, between results.
    """

    def message(self, job: Job, message: Json) -> None:
        """A message that the job has passed to `send`."""

    def log(self, job: Job, line: str) -> None:
        """A line that the job's process has printed, or a note of the executor, as of a restart."""


class PrintedLog:
    """Prints the lines of jobs on standard error, each after the job's name."""

    def message(self, job: Job, message: Json) -> None:
        pass

    def log(self, job: Job, line: str) -> None:
        print(f"{job.name}: {line}", file=sys.stderr, flush=True)


class Executor(Protocol):
    """Runs jobs, several at the same time."""

    def run(
        self, jobs: Sequence[Job], listener: JobListener | None = None
    ) -> Generator[JobResult, None, None]:
        """The results, each as soon as its job ends. Jobs start in order; as many run at the same
        time as the executor has workers.

        A job whose process dies (killed, or its machine is gone) is called again with the same
        arguments, a limited number of times; its function should continue from what it has saved.
        At Ctrl-C and SIGTERM each running job gets SIGTERM, so that it can save; at a second one
        they end at once. They end, too, when the generator is closed (use `contextlib.closing`) and
        when this process ends.

        listener: receives messages and printed lines; None: `PrintedLog`.

        Raises:
            Interrupted: after Ctrl-C or SIGTERM, when all jobs have ended.
        """


_sink: ContextVar[Callable[[Json], None]] = ContextVar("sink")


def send(message: Json) -> None:
    """Pass a message from a job to the listener of `Executor.run`; outside a job, do nothing."""
    if (sink := _sink.get(None)) is not None:
        sink(message)


@contextmanager
def sending_to(sink: Callable[[Json], None]) -> Iterator[None]:
    """Inside, `send` calls `sink`. For the process in which an executor calls a job's function."""
    token = _sink.set(sink)
    try:
        yield
    finally:
        _sink.reset(token)
