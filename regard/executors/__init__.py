"""Jobs in processes: on this machine, under Slurm, on a Ray cluster.

    local.py      processes of this machine
    clusters.py   jobs under Slurm, by submitit; tasks of a Ray cluster

A job is a Python function by its dotted name, with arguments that JSON can hold. It is started
again if its process dies, and not if the function raises an error.

Internal: names that `regard` itself does not have may change with every version.
"""

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, fields
from typing import Annotated, Any, Protocol, TypeAlias

from regard.errors import ConfigError, RegardError, check_at_least
from regard.lazy import entry

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"
Log = Callable[[str, str], None]  # takes the name of a job and a line

EXECUTORS = {
    "local": "local:LocalExecutor",
    "slurm": "clusters:SlurmExecutor",
    "ray": "clusters:RayExecutor",
    "here": "local:HereExecutor",
}
RESTARTS = 3  # of a job whose process has died
POLL_INTERVAL = 0.5  # seconds between two calls of `tick`


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


class JobFailed(RegardError):
    """The function of a job has raised an error."""


class JobLost(RegardError):
    """The process of a job has died too often."""


@dataclass(frozen=True)
class ExecutorOptions:
    """Where jobs run.

    Raises:
        ConfigError: an option does not belong to the executor, or `time` is below 1.
    """

    executor: Annotated[str, "Where processes run: local, slurm or ray."] = "local"
    partition: Annotated[str, "Slurm: the partition that jobs are submitted to."] = ""
    time: Annotated[int | None, "Slurm: the minutes of a job at most; default: a day."] = None
    account: Annotated[str, "Slurm: the account that jobs are charged to."] = ""
    sbatch: Annotated[
        list[str] | None, "Slurm: an option of sbatch, NAME=VALUE or NAME; may be repeated."
    ] = None
    ray_address: Annotated[
        str,
        "Ray: HOST:PORT of a cluster's Ray Client server, or auto; default: RAY_ADDRESS, or a "
        "cluster that is started on this machine.",
    ] = ""

    def __post_init__(self) -> None:
        for field in fields(self)[1:]:
            owner = "ray" if field.name == "ray_address" else "slurm"
            if getattr(self, field.name) != field.default and self.executor != owner:
                raise ConfigError(
                    f"`{field.name}` is an option of the executor {owner}, but the executor is "
                    f"{self.executor}. Leave it out, or choose the other: --executor {owner}."
                )
        check_at_least(1, time=self.time)


class Executor(Protocol):
    """Runs jobs, several at the same time."""

    def submit(self, job: Job) -> Future[Json]:
        """The value that the job's function will return.

        A job whose process dies (killed, or its machine is gone) is called again with the same
        arguments, a limited number of times; its function should continue from what it has saved.
        The future raises JobFailed if the function raises an error, and JobLost.
        """

    def stop(self) -> None:
        """Drop the jobs that wait, send SIGTERM to those that run, so that they save, and return
        when they have ended. Jobs on this machine end at once at a second Ctrl-C."""


def value_of(answer: Mapping[str, Any]) -> Json:
    """The value in the answer of a job, see `regard.executors.local.call`.

    Raises:
        JobFailed: the function has raised an error.
        Interrupted: it was stopped.
    """
    from regard.training.interrupt import Interrupted

    if "error" in answer:
        raise JobFailed(answer["error"])
    if "stopped" in answer:
        raise Interrupted("stopped", answer["stopped"])
    value: Json = answer["value"]
    return value


def results_of(
    executor: Executor, jobs: Sequence[Job], tick: Callable[[], object] = lambda: None
) -> Generator[tuple[Job, Future[Json]], None, None]:
    """Each job with its future, as they end. If the generator is closed before, the others stop.

    tick: is called about twice a second.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when all jobs have ended.
    """
    from regard.training.interrupt import Interrupted, Interruption, Stopped

    with Interruption() as interruption:
        running: dict[Future[Json], Job] = {}
        try:
            for job in jobs:
                future = executor.submit(job)
                if future.done():  # it has run in this process
                    yield job, future
                else:
                    running[future] = job
            while running:
                with interruption.interruptible():
                    wait(running, POLL_INTERVAL, FIRST_COMPLETED)
                for future in [future for future in running if future.done()]:
                    yield running.pop(future), future
                tick()
        except Stopped:
            executor.stop()
            running = {}
            raise Interrupted("stopped: all jobs have ended", interruption.code) from None
        finally:
            if running:
                executor.stop()


def print_line(name: str, line: str) -> None:
    """Print a line of a job on standard error, after the job's name."""
    print(f"{name}: {line}", file=sys.stderr, flush=True)


def make_executor(chosen: str | ExecutorOptions, workers: int, log: Log = print_line) -> Executor:
    """The executor of a name, or with options.

    chosen: a name of `EXECUTORS`, or the name with options of that executor.
    workers: how many jobs run at once, at least 1.
    log: is called with the name of a job and a line that it has printed, or a note about it, from
        any thread.

    Raises:
        ConfigError: there is none of this name, or a Ray cluster does not answer.
        MissingExtra: a package that it needs is not installed.
    """
    check_at_least(1, workers=workers)
    options = ExecutorOptions(chosen) if isinstance(chosen, str) else chosen
    executor: Executor = entry(EXECUTORS, options.executor, "executor", __name__)(
        workers, options, log
    )
    return executor
