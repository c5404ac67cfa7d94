"""Tokens to batches: read files, keep token ids in flat arrays, batch them, stream them.

Internal: names that `regard` itself does not have may change with every version.
"""

from regard.lazy import names_of

__all__, __getattr__ = names_of(
    __name__,
    {
        "batches": "Batches IGNORE PairBatch Sequences StreamBatch",
        "bucketing": "Buckets sorted_batches",
        "corpus": "Corpus encode_corpus",
        "corpus_folder": "build_corpus open_corpus",
        "datasets.conll": "TaggedSentence read_conll",
        "datasets.glue": "read_glue",
        "datasets.dialogues": "Replies Turns read_dialogues",
        "datasets.minimal_pairs": "MinimalPair read_minimal_pairs",
        "datasets.multiple_choice": "ChoiceQuestion read_choices",
        "datasets.records": "RecordReader",
        "datasets.sentiment_trees": "read_sentiment_trees",
        "datasets.squad": "AnswerSpan Question read_squad",
        "datasets.treebank": "read_treebank",
        "document_windows": "DocumentWindows",
        "documents": "Documents read_documents",
        "files": "hash_of",
        "lm_streams": "ParallelStreams ShuffledBlocks SlidingWindows VariableStreams WarmedStreams",
        "readers": "RowReader read read_parallel",
        "sampler": "EpochSampler",
        "word_vectors": "PretrainedVectors read_word_vectors",
        "token_arrays": "EncodedExamples FieldEncoder ReadReport TokenArray encode encode_texts",
    },
)
