"""Loss to better weights: the loop, optimizers, schedules, and runs that resume exactly."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "CheckpointOptions": "options",
    "OptimizerOptions": "options",
    "ScheduleOptions": "options",
    "TrainingOptions": "options",
    "ValidationOptions": "options",
    "Interrupted": "interrupt",
    "NonFiniteError": "loop",
    "Result": "run",
    "Task": "loop",
    "average": "averaging",
    "resume": "run",
    "train": "run",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
