"""The process of a job on this machine.

    python -c "...; main()" < {"function": "package.module:name", "arguments": {...}}

The job is the first line of standard input. Standard output has lines of JSON alone:
{"message": ...} as often as the job sends one, and at the end {"value": ...}, {"error": ...} or
{"stopped": CODE}. What the job prints goes to standard error. When the rest of standard input ends,
which happens also when the process that started this one is killed, the job gets SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Any

from regard.errors import RegardError
from regard.executors.protocol import Json, sending_to
from regard.lazy import imported


def call(function: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
    """What the function returns or raises, as the last line of a worker."""
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


def main() -> None:
    """Read a job, run it, and write its answer."""
    given: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the job and its libraries print is no answer
    lock = threading.Lock()

    def write(answer: Json) -> None:
        line = json.dumps(answer) + "\n"
        with lock:
            answers.write(line)
            answers.flush()

    with sending_to(lambda message: write({"message": message})):
        answer = call(given["function"], given["arguments"])
    write(answer)
    # Threads of the job, and what libraries do at exit, do not keep the process.
    sys.stderr.flush()
    os._exit(0)
