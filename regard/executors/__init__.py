"""Jobs in processes: on this machine, under Slurm, on a Ray cluster.

    protocol.py   a job, and the protocol of executors
    local.py      processes of this machine
    slurm.py      jobs under Slurm, by submitit
    ray.py        tasks of a Ray cluster
    worker.py     calls the function of a job, in its process

A job is a Python function by its dotted name, with arguments that JSON can hold. It is started
again if its process dies, and not if the function raises an error.

Internal: names that `regard` itself does not have may change with every version.
"""

from regard.errors import check_at_least
from regard.executors.protocol import Executor, ExecutorOptions, Log, print_line
from regard.lazy import entry, names_of

EXECUTORS = {
    "local": "local:LocalExecutor",
    "slurm": "slurm:SlurmExecutor",
    "ray": "ray:RayExecutor",
    "here": "local:HereExecutor",
}

__all__, __getattr__ = names_of(
    __name__, {"protocol": "Executor ExecutorOptions Job JobFailed JobLost Json results_of"}
)
__all__ += ["EXECUTORS", "make_executor"]


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
    made: Executor = entry(EXECUTORS, options.name, "executor", __name__)(workers, options, log)
    return made
