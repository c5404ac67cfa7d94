"""Jobs in processes: on this machine, under Slurm, on a Ray cluster.

    protocol.py   a job, its result, and the protocol of executors
    local.py      processes of this machine
    slurm.py      jobs under Slurm
    slurm_queue.py  what Slurm says of jobs
    ray.py        tasks of a Ray cluster
    worker.py     the process of a job on this machine
    restarting.py the loop of all three: runs a number of jobs at once and restarts those that died

A job is a Python function by its dotted name, with arguments that JSON can hold. It is started
again if its process dies, and not if the function raises an error.

Internal: names that `regard` itself does not have may change with every version.
"""

from __future__ import annotations

from regard.errors import check_at_least
from regard.executors.protocol import Executor, ExecutorOptions
from regard.lazy import entry, names_of

EXECUTORS = {
    "local": "local:LocalExecutor",
    "slurm": "slurm:SlurmExecutor",
    "ray": "ray:RayExecutor",
}

__all__, __getattr__ = names_of(
    __name__,
    {"protocol": "Executor ExecutorOptions Job JobResult Json JobListener PrintedLog send"},
)
__all__ += ["EXECUTORS", "make_executor"]


def make_executor(chosen: str | ExecutorOptions, workers: int) -> Executor:
    """The executor of a name, or with options.

    chosen: a name of `EXECUTORS`, or the name with options of that executor.
    workers: how many jobs run at once, at least 1.

    Raises:
        ConfigError: there is none of this name.
        MissingExtra: a package that it needs is not installed.
    """
    check_at_least(1, workers=workers)
    options = ExecutorOptions(chosen) if isinstance(chosen, str) else chosen
    made: Executor = entry(EXECUTORS, options.name, "executor", __name__)(workers, options)
    return made
