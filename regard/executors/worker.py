"""Calls the function of a job, in the process of the job.

On this machine that process is

    python -c "...; main()" ANSWER < {"function": "package.module:name", "arguments": {...}}

The job is the first line of standard input. When the rest of it ends, which happens also when the
process that started this one is killed, the job gets SIGTERM. The answer is written into a file.
"""

import json
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path

from regard.errors import RegardError
from regard.executors.protocol import Json
from regard.file_writing import write_text
from regard.lazy import imported


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
