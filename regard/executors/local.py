"""Jobs in processes of this machine, which divide its threads among them."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from typing import IO, Any, Self

from regard.errors import ConfigError
from regard.executors.protocol import ExecutorOptions, Job, JobListener, JobResult, PrintedLog
from regard.executors.restarting import RESTARTS, Ended, results_of

POLL_INTERVAL = 0.2  # seconds between two checks whether a process has ended
READ_BYTES = 1 << 16
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
# oneDNN and torch keep what they have compiled for up to 1,024 shapes each. Batches without padding
# have as many shapes as numbers of tokens: a worker would grow by 300 MB, and compute no faster.
SHAPE_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
CACHED_SHAPES = 64
# It imports what this process would import. `python -m` would import modules of the current folder,
# whatever they are: data may lie there, or a file named as a module of Python's.
WORKER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from regard.executors.worker import main; main()"
)


def available_cpus() -> int:
    """The CPUs that this process may use; a container may allow less time on them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LocalExecutor:
    """Runs jobs in processes of this machine: an `Executor`.

    workers: how many jobs run at the same time.
    restarts: how often a job is started again if its process dies.
    """

    def __init__(
        self, workers: int, options: ExecutorOptions | None = None, *, restarts: int = RESTARTS
    ):
        self.workers, self.restarts = workers, restarts

    def run(
        self, jobs: Sequence[Job], listener: JobListener | None = None
    ) -> Generator[JobResult, None, None]:
        """The results as jobs end; see `Executor.run`."""
        with _Running(listener or PrintedLog(), self.workers) as running:
            yield from results_of(running, jobs, self.workers, self.restarts)


def job_variables(threads: int) -> dict[str, str]:
    """The environment variables of a job's process: its threads, and how many shapes are cached.

    A cache that the user has limited keeps its limit.
    """
    parallel = "true" if threads > 1 else "false"
    caches = {name: os.environ.get(name, str(CACHED_SHAPES)) for name in SHAPE_CACHES}
    return dict.fromkeys(THREADS, str(threads)) | caches | {"TOKENIZERS_PARALLELISM": parallel}


def _environment(job: Job, slot: int, workers: int) -> dict[str, str]:
    """The environment variables of a job's process: its threads, and its GPUs if it asks for some.

    slot: the place of the process among `workers`, from 0, which chooses its GPUs.

    Raises:
        ConfigError: there are fewer GPUs than the workers ask for.
    """
    threads = job.cpus or max(1, available_cpus() // workers)
    environment = os.environ | job_variables(threads)
    if job.gpus:
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        every = ",".join(map(str, range(job.gpus * workers)))
        gpus = [gpu for gpu in (every if named is None else named).split(",") if gpu.strip()]
        own = gpus[slot * job.gpus : (slot + 1) * job.gpus]
        if len(own) < job.gpus:
            raise ConfigError(
                f"{workers} workers with {job.gpus} GPUs each need {workers * job.gpus} GPUs, but "
                f"CUDA_VISIBLE_DEVICES names {len(gpus)}: {named!r}. Use fewer workers."
            )
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    return environment


class _Child:
    """The process of a job and the pipes to it."""

    def __init__(self, job: Job, restarts: int, slot: int, environment: dict[str, str]):
        self.job, self.restarts, self.slot = job, restarts, slot
        self.answer: dict[str, Any] | None = None
        self.unread = {"stdout": b"", "stderr": b""}  # the beginning of a line
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", WORKER, json.dumps(sys.path)],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=environment,
            start_new_session=True,  # Ctrl-C in a terminal reaches the waiting process alone
        )
        request = {"function": job.function, "arguments": job.arguments}
        try:
            self.stdin.write(json.dumps(request).encode() + b"\n")
            self.stdin.flush()
        except BrokenPipeError:  # it has died already: `_Running.ended` notices it
            pass

    @property
    def stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def outputs(self) -> dict[str, IO[bytes]]:
        """Its standard output and error."""
        assert self.process.stdout is not None and self.process.stderr is not None
        return {"stdout": self.process.stdout, "stderr": self.process.stderr}

    @property
    def death(self) -> str:
        """How the process ended, if it gave no result."""
        code = self.process.returncode
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process ended with code {code} and without a result"

    def read(self, name: str) -> tuple[list[str], bool]:
        """The whole lines that have arrived, and whether there may be more to read now."""
        try:
            block = os.read(self.outputs[name].fileno(), READ_BYTES)
        except BlockingIOError:
            return [], False
        *whole, rest = (self.unread[name] + block).split(b"\n")
        self.unread[name] = rest
        return [line.decode(errors="backslashreplace") for line in whole], bool(block)

    def ask_to_stop(self) -> None:
        """End its standard input: the process then sends SIGTERM to itself.

        One that is suspended (SIGSTOP) goes on, so that it can.
        """
        if not self.stdin.closed:
            self.stdin.close()
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.process.wait()
        for stream in (self.stdin, *self.outputs.values()):
            stream.close()


class _Running:
    """The running processes, which are `RunningJobs`; a listener gets their messages and lines.

    workers: how many run at the same time, at most.
    """

    def __init__(self, listener: JobListener, workers: int):
        self.listener, self.workers = listener, workers
        self.children: list[_Child] = []
        self.selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.stop()
        finally:
            self.selector.close()

    def __len__(self) -> int:
        return len(self.children)

    def start(self, job: Job, restarts: int) -> None:
        slot = min({*range(self.workers)} - {child.slot for child in self.children})
        child = _Child(job, restarts, slot, _environment(job, slot, self.workers))
        self.children.append(child)
        for name, stream in child.outputs.items():
            os.set_blocking(stream.fileno(), False)
            self.selector.register(stream, selectors.EVENT_READ, (child, name))

    def wait(self) -> None:
        """Read what the processes have written, or wait a moment for it."""
        for key, _ in self.selector.select(POLL_INTERVAL):
            child, name = key.data
            if not self._read(child, name):
                self.selector.unregister(key.fileobj)

    def _read(self, child: _Child, name: str) -> bool:
        lines, more = child.read(name)
        for line in lines:
            if name == "stderr":
                self.listener.log(child.job, line)
                continue
            answer = json.loads(line)
            if "message" in answer:
                self.listener.message(child.job, answer["message"])
            elif "stopped" not in answer:
                child.answer = answer
        return more

    def ended(self) -> list[Ended]:
        """The jobs whose processes have ended, which no longer count as running.

        What has arrived in their pipes is read; the pipes are not read to their end, since
        processes that a job has started may keep them open.
        """
        ended = [child for child in self.children if child.process.poll() is not None]
        for child in ended:
            for name, stream in child.outputs.items():
                while self._read(child, name):
                    pass
                if name == "stderr" and (rest := child.unread[name]):
                    self.listener.log(child.job, rest.decode(errors="backslashreplace"))
                if stream in self.selector.get_map():
                    self.selector.unregister(stream)
            child.close()
            self.children.remove(child)
        return [(one.job, one.restarts, one.answer or one.death) for one in ended]

    def stop(self) -> None:
        """Ask all processes to stop and wait for them; another Ctrl-C kills them."""
        try:
            for child in self.children:
                child.ask_to_stop()
            while self.children:
                self.wait()
                self.ended()
        except KeyboardInterrupt:
            for child in self.children:
                child.process.kill()
                child.close()
            self.children = []
            raise
