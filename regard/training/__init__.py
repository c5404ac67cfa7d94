"""Loss to better weights: the loop, optimizers, schedules, and runs that resume exactly.

Internal: names that `regard` itself does not have may change with every version.
"""

from regard.lazy import names_of

__all__, __getattr__ = names_of(
    __name__,
    {
        "callbacks": "Callback Result Step Trainable",
        "checkpointing": "average",
        "interrupt": "Interrupted Paused",
        "metrics_log": "WandbLogger",
        "options": "AveragingOptions CheckpointOptions OptimizerOptions ScheduleOptions "
        "TrainingOptions ValidationOptions",
        "run": "resume train",
        "steps": "NonFiniteError",
    },
)
