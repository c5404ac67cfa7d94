"""Regard: every sequence model between the LSTM and GPT, in one small package.

The public names are a table and are imported when first used: `import regard` loads neither
torch nor numpy.
"""

from regard.lazy import names_of

__version__ = "0.1.0"

__all__, __getattr__ = names_of(
    __name__,
    {
        "attention.pruning": "head_importance heads_gated heads_masked prune_heads",
        "errors": "CheckpointError ConfigError DataError MissingExtra RegardError",
        "experiments.cross_validation": "cross_validate",
        "experiments.find_lr": "find_lr",
        "experiments.runs": "resume train",
        "exporting": "export",
        "sharded.mapping": "map",
        "sharded.reading": "read_parts",
        "experiments.sweep": "sweep",
        "tasks": "register",
        "tasks.folders": "load quantize save",
        "visual.attention_record": "look",
    },
)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
