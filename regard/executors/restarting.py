"""The loop of all executors: it runs a number of jobs at once and restarts those that died."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol

from regard.executors.protocol import Job, JobListener, JobResult
from regard.training.interrupt import Interrupted, Interruption, Stopped

RESTARTS = 3  # of a job whose process has died

# A job that has ended, the number of its restarts, and its answer (see
# `regard.executors.worker.call`) or how its process died.
Ended = tuple[Job, int, Mapping[str, Any] | str]


class RunningJobs(Protocol):
    """The jobs of an executor that are running."""

    listener: JobListener

    def __len__(self) -> int:
        """Their number."""

    def start(self, job: Job, restarts: int) -> None:
        """Start one more."""

    def wait(self) -> None:
        """Wait a moment for something to happen; a signal may interrupt it anywhere."""

    def ended(self) -> Iterable[Ended]:
        """The jobs that have ended; they no longer count as running."""

    def stop(self) -> None:
        """Ask all jobs to save and stop, and wait until they have ended."""


def results_of(
    running: RunningJobs, jobs: Sequence[Job], at_once: int, restarts: int
) -> Generator[JobResult, None, None]:
    """The results of jobs as they end; `at_once` jobs run at a time.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when all jobs have ended.
    """
    waiting = deque((job, 0) for job in jobs)  # with the number of its restarts
    with Interruption() as interruption:
        try:
            while waiting or len(running):
                while waiting and len(running) < at_once:
                    running.start(*waiting.popleft())
                with interruption.leaving_at_once():
                    running.wait()
                for job, times, answer in running.ended():
                    if not isinstance(answer, str):
                        yield JobResult(job, answer.get("value"), answer.get("error", ""))
                    elif times < restarts:
                        running.listener.log(job, f"{answer}; it is started again")
                        waiting.appendleft((job, times + 1))
                    else:
                        error = f"{answer}, {times + 1} times" if times else answer
                        yield JobResult(job, error=error, lost=True)
        except Stopped:
            running.stop()
            raise Interrupted("stopped: all jobs have ended", interruption.code) from None
        finally:
            running.stop()
