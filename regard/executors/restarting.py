"""The loop of all executors: it runs a number of jobs at once and restarts those that died."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol

from regard.executors.protocol import Job, JobListener, JobResult
from regard.training.interrupt import Interrupted, Interruption, Stopped

RESTARTS = 3  # of a job whose process has died, unless the executor is given another number

# A job that has ended, the number of its restarts, and its answer (see
# `regard.executors.worker.call`) or how its process died.
Ended = tuple[Job, int, Mapping[str, Any] | str]


class RunningJobs(Protocol):
    """The jobs of an executor that are running."""

    listener: JobListener

    def __len__(self) -> int:
        """The number of running jobs."""

    def start(self, job: Job, restarts: int) -> None:
        """Start a job; `restarts` counts the starts of the same job before this one."""

    def wait(self) -> None:
        """Wait a moment for something to happen; a signal may interrupt it anywhere."""

    def ended(self) -> Iterable[Ended]:
        """The jobs that have ended; they no longer count as running."""

    def stop(self) -> None:
        """Ask all jobs to save and stop, and wait until they have ended."""


def results_of(
    running: RunningJobs, jobs: Sequence[Job], workers: int, max_restarts: int
) -> Generator[JobResult, None, None]:
    """The results of jobs as they end.

    workers: how many jobs run at the same time.
    max_restarts: how often a job is started again whose process has died.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when all jobs have ended.
    """
    waiting = deque((job, 0) for job in jobs)  # with the number of its restarts
    with Interruption() as interruption:
        try:
            while waiting or len(running):
                while waiting and len(running) < workers:
                    running.start(*waiting.popleft())
                with interruption.interruptible():
                    running.wait()
                for job, restarts, answer in running.ended():
                    if not isinstance(answer, str):
                        yield JobResult(job, answer.get("value"), answer.get("error", ""))
                    elif restarts < max_restarts:
                        running.listener.log(job, f"{answer}; it is started again")
                        waiting.appendleft((job, restarts + 1))
                    else:
                        error = f"{answer}, {restarts + 1} times" if restarts else answer
                        yield JobResult(job, error=error, lost=True)
        except Stopped:
            running.stop()
            raise Interrupted("stopped: all jobs have ended", interruption.code) from None
        finally:
            running.stop()
