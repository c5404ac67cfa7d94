"""What the server counts, as Prometheus reads it."""

from __future__ import annotations

import threading
from collections import Counter

Labels = tuple[tuple[str, str], ...]
# name -> what it counts; those that end in _total only grow
HELP = {
    "regard_requests_total": "Answered requests, by path and status.",
    "regard_request_seconds_total": "Time of requests from arrival to answer, by path.",
    "regard_items_total": "Texts, prompts and images that were computed, by path.",
    "regard_calls_total": "Calls of models, for one or several requests, by path.",
    "regard_generated_tokens_total": "Tokens generated in continuous batches, by model.",
    "regard_waiting_tokens": "Tokens of the requests that wait or are computed, estimated.",
    "regard_waiting_requests": "Requests that wait or are computed.",
}


class RequestCounters:
    """Numbers with a name and labels; threads may share one."""

    def __init__(self) -> None:
        self._values = Counter[tuple[str, Labels]]()
        self._lock = threading.Lock()

    def add(self, name: str, amount: float = 1, **labels: object) -> None:
        """Count more of something in `HELP`."""
        key = name, tuple((label, str(value)) for label, value in labels.items())
        with self._lock:
            self._values[key] += amount  # type: ignore[assignment]

    def text(self, **now: float) -> str:
        """In Prometheus' text format, version 0.0.4.

        now: numbers that are known at this moment, by their names without "regard_".
        """
        with self._lock:
            values: dict[tuple[str, Labels], float] = dict(self._values)
        values |= {(f"regard_{name}", ()): value for name, value in now.items()}
        lines = []
        for name, said in HELP.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {said}", f"# TYPE {name} {kind}"]
            found = sorted((labels, value) for (n, labels), value in values.items() if n == name)
            lines += [f"{name}{_labels(labels)} {value:.10g}" for labels, value in found]
        return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
