"""Tokens to batches: read files, keep token ids in flat arrays, batch them, stream them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "Answer": "squad",
    "Batches": "batches",
    "Blocks": "streams",
    "Buckets": "buckets",
    "Choice": "choices",
    "Column": "store",
    "Cursor": "cursor",
    "Examples": "store",
    "IGNORE": "batches",
    "PairBatch": "batches",
    "Question": "squad",
    "Records": "records",
    "Report": "store",
    "Rows": "readers",
    "Sentence": "conll",
    "Sequences": "batches",
    "StreamBatch": "batches",
    "Streams": "streams",
    "Tokens": "store",
    "Windows": "streams",
    "encode": "store",
    "hash_of": "files",
    "read": "readers",
    "read_choices": "choices",
    "read_conll": "conll",
    "read_glue": "benchmarks",
    "read_parallel": "readers",
    "read_squad": "squad",
    "sorted_batches": "buckets",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
