"""An executor without processes: jobs run one after the other, and import nothing again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.errors import RegardError
from regard.executors import Job, JobListener, JobResult
from regard.executors.protocol import sending_to
from regard.lazy import imported


class InThisProcess:
    """An `Executor`."""

    def run(self, jobs: Sequence[Job], listener: JobListener) -> Iterator[JobResult]:
        for job in jobs:
            try:
                with sending_to(lambda message, job=job: listener.message(job, message)):
                    value = imported(job.function)(**job.arguments)
            except RegardError as error:
                yield JobResult(job, error=str(error))
            else:
                yield JobResult(job, value)
