"""Loss to better weights: the loop, optimizers, schedules, and runs that resume exactly."""

from __future__ import annotations

from regard.lazy import names_of

_HOME = {
    "CheckpointOptions": "options",
    "OptimizerOptions": "options",
    "ScheduleOptions": "options",
    "TrainingOptions": "options",
    "ValidationOptions": "options",
    "Interrupted": "interrupt",
    "NonFiniteError": "loop",
    "Result": "loop",
    "Task": "task",
    "average": "averaging",
    "resume": "run",
    "train": "run",
}
__all__ = sorted(_HOME)


__getattr__ = names_of(__name__, _HOME)
