"""Loss to better weights: the loop, optimizers, schedules, and runs that resume exactly.

Internal: names that `regard` itself does not have may change with every version.
"""

from __future__ import annotations

from regard.lazy import names_of

__all__, __getattr__ = names_of(
    __name__,
    {
        "averaging": "average",
        "callbacks": "Callback Step",
        "interrupt": "Interrupted Paused",
        "loggers": "MLflowLogger WandbLogger",
        "options": "AveragingOptions CheckpointOptions OptimizerOptions ScheduleOptions "
        "TrainingOptions ValidationOptions",
        "result": "Result",
        "run": "resume train",
        "task": "Trainable",
        "steps": "NonFiniteError",
    },
)
