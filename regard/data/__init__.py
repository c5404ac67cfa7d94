"""Tokens to batches: read files, keep token ids in flat arrays, batch them, stream them."""

from __future__ import annotations

from regard.demand import names_of

_HOME = {
    "Answer": "squad",
    "Batches": "batches",
    "Blocks": "streams",
    "Buckets": "buckets",
    "Choice": "choices",
    "Column": "store",
    "Columns": "streams",
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
    "encode_texts": "store",
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


__getattr__ = names_of(__name__, _HOME)
