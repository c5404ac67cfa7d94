"""Tokens to batches: read files, keep token ids in flat arrays, batch them, stream them."""

from __future__ import annotations

from regard.demand import names_of

_HOME = {
    "Answer": "datasets.squad",
    "Batches": "batches",
    "Blocks": "lm_streams",
    "Buckets": "bucketing",
    "Choice": "datasets.multiple_choice",
    "Column": "token_arrays",
    "Columns": "lm_streams",
    "Cursor": "sampler",
    "Examples": "token_arrays",
    "IGNORE": "batches",
    "PairBatch": "batches",
    "Question": "datasets.squad",
    "Records": "datasets.records",
    "Report": "token_arrays",
    "Rows": "readers",
    "Sentence": "datasets.conll",
    "Sequences": "batches",
    "StreamBatch": "batches",
    "Streams": "lm_streams",
    "Tokens": "token_arrays",
    "Windows": "lm_streams",
    "encode": "token_arrays",
    "encode_texts": "token_arrays",
    "hash_of": "files",
    "read": "readers",
    "read_choices": "datasets.multiple_choice",
    "read_conll": "datasets.conll",
    "read_glue": "datasets.glue",
    "read_parallel": "readers",
    "read_squad": "datasets.squad",
    "sorted_batches": "bucketing",
}
__all__ = sorted(_HOME)


__getattr__ = names_of(__name__, _HOME)
