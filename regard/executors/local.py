"""Jobs in processes of this machine, which divide its threads among them.

A thread waits for each process, and starts it again if it was killed. The process is

    python -c "...; main()" ANSWER < {"function": "package.module:name", "arguments": {...}}

The job is the first line of standard input. When the rest of it ends, which happens also when the
process that started this one is killed, the job gets SIGTERM. The answer is written into a file.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from regard.errors import ConfigError, RegardError
from regard.executors import (
    RESTARTS,
    ExecutorOptions,
    Job,
    JobFailed,
    JobLost,
    Json,
    Log,
    print_line,
    value_of,
)
from regard.file_writing import write_text
from regard.lazy import imported

LAST_LINES = 1.0  # seconds for the lines that a process has printed before it ended
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
# oneDNN and torch keep what they have compiled for up to 1,024 shapes each. Batches without padding
# have as many shapes as numbers of tokens: a worker would grow by 300 MB, and compute no faster.
SHAPE_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
CACHED_SHAPES = 64
# It imports what this process would import. `python -m` would import modules of the current folder,
# whatever they are: data may lie there, or a file named as a module of Python's.
WORKER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from regard.executors.local import main; main()"
)


def available_cpus() -> int:
    """The CPUs that this process may use; a container may allow less time on them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LocalExecutor:
    """Runs jobs in processes of this machine: an `Executor`.

    workers: how many jobs run at the same time.
    """

    def __init__(self, workers: int, options: ExecutorOptions | None = None, log: Log = print_line):
        self.workers, self.log = workers, log
        self._threads = ThreadPoolExecutor(workers)
        self._slots: queue.SimpleQueue[int] = queue.SimpleQueue()  # each has GPUs of its own
        for slot in range(workers):
            self._slots.put(slot)
        self._processes: set[subprocess.Popen[str]] = set()
        self._stopping = False

    def submit(self, job: Job) -> Future[Json]:
        """The value of a job, see `Executor`."""
        return self._threads.submit(self._run, job)

    def stop(self) -> None:
        """Stop all jobs, see `Executor`."""
        self._stopping = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        try:
            for process in [*self._processes]:
                _ask_to_stop(process)
            self._threads.shutdown()
        except KeyboardInterrupt:
            for process in [*self._processes]:
                process.kill()
            raise

    def _run(self, job: Job) -> Json:
        """Start the process of a job until it answers."""
        slot, restarts = self._slots.get(), 0
        try:
            environment = _environment(job, slot, self.workers)
            while True:
                answer, death = self._answer(job, environment)
                if "stopped" not in answer or self._stopping:
                    return value_of(answer)
                if restarts == RESTARTS:
                    raise JobLost(f"{death}, {restarts + 1} times" if restarts else death)
                restarts += 1
                self.log(job.name, f"{death}; it is started again")
        finally:
            self._slots.put(slot)

    def _answer(self, job: Job, environment: Mapping[str, str]) -> tuple[dict[str, Any], str]:
        """The answer of a process ("stopped" where it has died), and how it ended."""
        with TemporaryDirectory() as folder:
            file = Path(folder) / "answer.json"
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", WORKER, str(file), json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                text=True,
                errors="backslashreplace",
                start_new_session=True,  # Ctrl-C in a terminal reaches the waiting process alone
            )
            self._processes.add(process)
            # The output is not read to its end, since processes of the job may keep it open.
            lines = Thread(target=self._read_lines, args=(job.name, process), daemon=True)
            lines.start()
            request = {"function": job.function, "arguments": job.arguments}
            with suppress(BrokenPipeError):  # it has died already
                assert process.stdin is not None
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            if self._stopping:
                _ask_to_stop(process)
            code = process.wait()
            lines.join(LAST_LINES)
            self._processes.discard(process)
            _ask_to_stop(process)
            death = f"its process ended with code {code} and without a result"
            if code < 0:
                death = f"its process was killed by {signal.Signals(-code).name}"
            if file.exists():
                return json.loads(file.read_text(encoding="utf-8")), death
            return {"stopped": 128 - code if code < 0 else code}, death

    def _read_lines(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self.log(name, line.rstrip("\n"))


class HereExecutor:
    """Runs jobs in this process, one after the other, when they are submitted: an `Executor`."""

    def __init__(self, workers: int, options: ExecutorOptions | None = None, log: Log = print_line):
        pass

    def submit(self, job: Job) -> Future[Json]:
        """The value of a job, see `Executor`.

        Raises:
            Interrupted: after Ctrl-C; the job has saved.
        """
        future: Future[Json] = Future()
        try:
            future.set_result(imported(job.function)(**job.arguments))
        except RegardError as error:
            future.set_exception(JobFailed(str(error)))
        return future

    def stop(self) -> None:
        """Nothing runs beside this call."""


def _ask_to_stop(process: subprocess.Popen[str]) -> None:
    """End the standard input of a process, which then sends SIGTERM to itself; one that is
    suspended (SIGSTOP) goes on, so that it can."""
    with suppress(BrokenPipeError):
        if process.stdin is not None:
            process.stdin.close()
    process.send_signal(signal.SIGCONT)  # nothing, where it has ended


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
        if len(gpus) < workers * job.gpus:
            raise ConfigError(
                f"{workers} workers with {job.gpus} GPUs each need {workers * job.gpus} GPUs, but "
                f"CUDA_VISIBLE_DEVICES names {len(gpus)}: {named!r}. Use fewer workers."
            )
        of_job = gpus[slot * job.gpus : (slot + 1) * job.gpus]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(of_job)
    return environment


# -------------------------------------------------------------------------- in the process of a job


def call(function: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
    """What the function returns as "value", the message of what it raises as "error", or "stopped",
    the code with which it was stopped."""
    try:
        return {"value": imported(function)(**arguments)}
    except RegardError as error:
        return {"error": str(error)}
    except KeyboardInterrupt as stopped:  # `Interrupted` of training has a code
        return {"stopped": getattr(stopped, "code", 130)}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def _stop_with_parent() -> None:
    os.read(0, 1)  # returns when the other end is closed
    os.kill(os.getpid(), signal.SIGTERM)


def _show_warning(message: Warning | str, *_: object) -> None:
    """The text alone, as commands show it: the line of code helps no user."""
    print(f"warning: {message}", file=sys.stderr, flush=True)


def main() -> None:
    """Read a job, run it, and write its answer."""
    job = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    answer = call(job["function"], job["arguments"])
    write_text(Path(sys.argv[1]), json.dumps(answer))
    # Threads of the job, and what libraries do at exit, do not keep the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
