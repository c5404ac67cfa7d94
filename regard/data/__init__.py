"""Tokens to batches: read files, keep token ids in flat arrays, batch them, stream them."""

from __future__ import annotations

from regard.lazy import names_of

_HOME = {
    "AnswerSpan": "datasets.squad",
    "Batches": "batches",
    "Buckets": "bucketing",
    "ChoiceQuestion": "datasets.multiple_choice",
    "EncodedExamples": "token_arrays",
    "EpochSampler": "sampler",
    "FieldEncoder": "token_arrays",
    "IGNORE": "batches",
    "PairBatch": "batches",
    "ParallelStreams": "lm_streams",
    "Question": "datasets.squad",
    "ReadReport": "token_arrays",
    "RecordReader": "datasets.records",
    "RowReader": "readers",
    "Sequences": "batches",
    "ShuffledBlocks": "lm_streams",
    "SlidingWindows": "lm_streams",
    "StreamBatch": "batches",
    "TaggedSentence": "datasets.conll",
    "TokenArray": "token_arrays",
    "WarmedStreams": "lm_streams",
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
