"""A listener that stores what jobs send and print."""

from __future__ import annotations

from regard.executors import Job, Json


class RecordingListener:
    """A `JobListener`. Messages and printed lines have the name of their job beside them."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Json]] = []
        self.lines: list[tuple[str, str]] = []

    def message(self, job: Job, message: Json) -> None:
        self.messages.append((job.name, message))

    def log(self, job: Job, line: str) -> None:
        self.lines.append((job.name, line))
