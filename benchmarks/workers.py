"""Each condition in a process of its own, so that no library's threads disturb another's.

A worker makes what it measures, says that it is ready, and waits in a read. Between its turns the
operating system has stopped it, so threads that spin while they wait take no core from the others.
The files that a condition opens, such as a quantized model, are written by another process before,
so that the peak memory of a worker includes only opening and running.

    prepare(condition, threads)     write the files that it opens, in a process of their own
    worker = Worker(condition, threads)
    worker.make()                   open them
    worker.call("turn")             the object's method `turn`: seconds, result, and how many cores
                                    other programs used meanwhile; a method `ready` is
                                    called before each turn and is not timed
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Self

ROOT = Path(__file__).parents[1]
CAN_STOP = hasattr(signal, "SIGSTOP")
INSTALL = {
    "ctranslate2": "pip install ctranslate2",
    "datasets": "pip install datasets",
    "gguf": "pip install gguf",
    "llama_cpp": "pip install llama-cpp-python (it compiles for a few minutes)",
    "onnx": "pip install onnx",
    "onnxruntime": "pip install onnxruntime",
    "sentence_transformers": "pip install sentence-transformers",
    "tokenizers": "pip install tokenizers",
    "transformers": "pip install transformers",
    "torchcrf": "pip install pytorch-crf",
}


class Failed(Exception):
    """What went wrong in a worker: its error, and the last lines of what it said."""


@dataclass(frozen=True)
class Condition:
    """One way to do the work.

    name: as the table says it.
    made: "module:class"; an object of it is made in the worker from `settings`.
    prepare: "module:function", called with `settings` in a process of its own before the worker
        starts; it writes the files that the object opens. Empty: there are none.
    needs: modules that must be installed.
    environment: variables of the worker's process.
    root: the folder in which it starts and finds the package `benchmarks`.
    """

    name: str
    made: str
    settings: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    prepare: str = ""
    root: Path = ROOT

    @property
    def missing(self) -> str:
        """How to install what is missing; empty when nothing is."""
        absent = [name for name in self.needs if find_spec(name) is None]
        return "; ".join(f"{name}: {INSTALL.get(name, 'pip install ' + name)}" for name in absent)


@dataclass(frozen=True)
class Turn:
    """One call: its seconds, its result, and how many cores other programs used meanwhile."""

    seconds: float
    result: Any
    others: float


def prepare(condition: Condition, threads: int) -> None:
    """Write the files that a condition opens, in a process that ends before the measurement.

    Raises:
        Failed: they could not be written.
    """
    if condition.prepare:
        with Worker(condition, threads) as one:
            one.prepare()


class Worker:
    """The process of a condition. `with Worker(...)` ends it."""

    def __init__(self, condition: Condition, threads: int):
        self.condition = condition
        self._said: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
            "RAYON_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(threads)],
            cwd=condition.root,
            env=environment | condition.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        self._stopped = False

    def prepare(self) -> None:
        """Write the files that the object opens."""
        self._ask({"prepare": self.condition.prepare, "settings": self.condition.settings})

    def make(self) -> float:
        """Make the object; gives the seconds, imports included."""
        order = {"made": self.condition.made, "settings": self.condition.settings}
        return self._ask(order)["seconds"]

    def call(self, method: str, *given: Any) -> Turn:
        """Call a method of the object."""
        answer = self._ask({"call": method, "given": given})
        return Turn(answer["seconds"], answer["result"], answer["others"])

    def peak(self) -> float | None:
        """The most memory that the process has held, in MB, where the system tells."""
        answer: float | None = self._ask({"peak": True})["result"]
        return answer

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self._stop(False)
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"it ended: {self._last()}") from None
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"it ended with {self.process.wait()}: {self._last()}")
        self._stop(True)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _stop(self, stop: bool) -> None:
        if CAN_STOP and stop != self._stopped:
            self.process.send_signal(signal.SIGSTOP if stop else signal.SIGCONT)
            self._stopped = stop

    def _last(self) -> str:
        self._said.seek(0)
        return self._said.read()[-2000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._said):
            if stream is not None:
                stream.close()


def serve(threads: int) -> None:
    """The worker's side: one JSON object a line in, one out, until the input ends."""
    _end_with_the_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is not an answer
    made: list[Any] = []
    for line in sys.stdin:
        try:
            answer = _answer(json.loads(line), made, threads)
        except Exception as error:  # whatever a peer raises is told, and the others go on
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _answer(order: dict[str, Any], made: list[Any], threads: int) -> dict[str, Any]:
    if "peak" in order:  # the object's own `peak` measures the commands that it starts
        return {"result": getattr(made[0], "peak", peak_of)()}
    if order.get("call") == "turn" and hasattr(made[0], "ready"):
        made[0].ready()
    began, busy = time.perf_counter(), _busy_elsewhere()
    if "prepare" in order:
        result = _named(order["prepare"])(**order["settings"])
    elif "made" in order:
        made[:] = [_named(order["made"])(**order["settings"], threads=threads)]
        result = None
    else:
        result = getattr(made[0], order["call"])(*order["given"])
    seconds = time.perf_counter() - began
    others = max(0.0, _busy_elsewhere() - busy) / max(seconds, 1e-9)
    return {"seconds": seconds, "result": result, "others": others}


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _busy_elsewhere() -> float:
    """CPU seconds, over all cores, of other processes and of other virtual machines of the host."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _idle, _waiting, irq, softirq, steal, *_ = map(
        int, stat.read_text().split("\n", 1)[0].split()[1:]
    )
    everybody = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return everybody - sum(os.times()[:4])


def _end_with_the_parent() -> None:
    """However it ends: who is stopped does not see the end of its input."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def peak_of() -> float | None:
    """The peak resident memory (VmHWM) of this process in MB; None where it is unknown.

    Not from `getrusage`, whose value includes the parent's memory at the fork.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    found = [line.split()[1] for line in lines if line.startswith("VmHWM")]
    return int(found[0]) / 1024 if found else None


if __name__ == "__main__":
    serve(int(sys.argv[1]))
