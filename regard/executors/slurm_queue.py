"""What Slurm's controller says of jobs: `squeue`, which needs no accounting, and `scancel`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from regard.errors import RegardError

FORMAT = "%i|%T|%r"  # number, state, reason
COMMAND_TIMEOUT = 60.0  # seconds for a command of Slurm; its own limit is about 10
# The states that a job does not leave. One that is preempted or whose node fails, and that the
# cluster requeues, is pending instead.
ENDED = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED "
    "TIMEOUT".split()
)
# Why a job is pending and will never start, as long as nobody changes it or the cluster.
NEVER_STARTS = {
    "PartitionTimeLimit": "The partition allows less time. Give it in minutes: --time 60.",
    "PartitionConfig": "The partition has no machine with so many CPUs, GPUs or so much memory.",
    "PartitionNodeLimit": "The partition does not allow so many machines.",
    "BadConstraints": "No machine has what the job asks for.",
    "AccountNotAllowed": "Name another account: --account NAME.",
    "InvalidAccount": "Name another account: --account NAME.",
    "QOSNotAllowed": "Name another QOS: --sbatch qos=NAME.",
    "InvalidQOS": "Name another QOS: --sbatch qos=NAME.",
}
# In the messages of Slurm's commands: the controller is stopped, restarts or has too much to do.
SILENT = ("Unable to contact slurm controller", "Socket timed out", "Zero Bytes were transmitted")


class ControllerSilent(RegardError):
    """Slurm's controller does not answer; it may later."""


@dataclass(frozen=True)
class QueuedJob:
    """A job in the queue.

    state: in Slurm's words: PENDING, RUNNING, COMPLETING, ...
    reason: why it is pending, or has failed, such as Resources or PartitionTimeLimit.
    """

    state: str
    reason: str = ""

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def queued_jobs() -> dict[str, QueuedJob]:
    """The jobs of this user, by their numbers: those that have ended, too, for some minutes.

    Raises:
        ControllerSilent: the controller does not answer, or not so that it can be understood.
    """
    command = [
        "squeue",
        "--noheader",
        "--states=all",
        f"--user={os.getuid()}",
        f"--format={FORMAT}",
    ]
    fields = [line.split("|") for line in _output(command).splitlines() if line.count("|") == 2]
    return {number: QueuedJob(state, reason) for number, state, reason in fields}


def cancel(numbers: Sequence[str]) -> None:
    """Cancel jobs, which get SIGTERM, and SIGKILL half a minute later; those that have ended may be
    among them.

    Raises:
        ControllerSilent: the controller does not answer.
    """
    _output(["scancel", "--quiet", *numbers])


@contextmanager
def outside_jobs() -> Iterator[None]:
    """Inside, the environment has no variables of a Slurm job: where the command itself runs in
    one, they would bind the new jobs to its CPUs and its memory."""
    inside = "SLURM_JOB_ID" in os.environ
    kept = {"SLURM_CONF", "SLURM_JWT"}  # how the controller is found
    names = [one for one in os.environ if inside and one.startswith(("SLURM", "SRUN_"))]
    hidden = {name: os.environ.pop(name) for name in names if name not in kept}
    try:
        yield
    finally:
        os.environ.update(hidden)


def is_silent(message: str) -> bool:
    """Whether a command of Slurm has failed because the controller did not answer."""
    return any(text in message for text in SILENT)


def _output(command: Sequence[str]) -> str:
    # A user's SQUEUE_PARTITION and the like would hide jobs.
    environment = {key: value for key, value in os.environ.items() if key[:7] != "SQUEUE_"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=COMMAND_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ControllerSilent(f"`{command[0]}` does not work: {error}") from None
    if done.returncode and (command[0] != "scancel" or is_silent(done.stderr)):
        raise ControllerSilent(done.stderr.strip().partition("\n")[0] or f"`{command[0]}` failed")
    return done.stdout
