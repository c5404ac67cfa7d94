"""Regard: every sequence model between the LSTM and GPT, in one small package.

The public names are a table and are imported when first used: `import regard` loads neither
torch nor numpy.
"""

from regard.lazy import names_of

__version__ = "0.1.0"

# name: where it lives. Sorted, so that this table is also the list of what is public.
_PUBLIC = {
    "CheckpointError": "errors:CheckpointError",
    "ConfigError": "errors:ConfigError",
    "DataError": "errors:DataError",
    "MissingExtra": "errors:MissingExtra",
    "RegardError": "errors:RegardError",
    "head_importance": "attention.pruning:head_importance",
    "heads_gated": "attention.pruning:heads_gated",
    "heads_masked": "attention.pruning:heads_masked",
    "load": "tasks.folders:load",
    "look": "visual.attention_record:look",
    "prune_heads": "attention.pruning:prune_heads",
    "quantize": "tasks.folders:quantize",
    "resume": "experiments.runs:resume",
    "save": "tasks.folders:save",
    "train": "experiments.runs:train",
}

__all__ = list(_PUBLIC)


__getattr__ = names_of(__name__, _PUBLIC)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
