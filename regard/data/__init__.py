"""Tokens to batches: read files, keep token ids in flat arrays, batch them, stream them.

Internal: names that `regard` itself does not have may change with every version.
"""

from regard.lazy import names_of

__all__, __getattr__ = names_of(
    __name__,
    {
        "batches": "Batches IGNORE PairBatch Sequences StreamBatch",
        "corpus": "Corpus Documents build_corpus encode_corpus open_corpus read_documents",
        "datasets.annotated": "TaggedSentence read_conll read_treebank",
        "datasets.glue": "read_glue read_sentiment_trees",
        "datasets.records": "AnswerSpan ChoiceQuestion MinimalPair Question Turns read_choices "
        "read_dialogues read_minimal_pairs read_squad replies",
        "files": "hash_of",
        "lm_streams": "DocumentWindows ParallelStreams ShuffledBlocks SlidingWindows "
        "VariableStreams WarmedStreams",
        "readers": "ReadReport RowReader open_table read_parallel",
        "sampler": "Buckets EpochSampler sorted_batches",
        "word_vectors": "PretrainedVectors read_word_vectors",
        "token_arrays": "EncodedExamples FieldEncoder TokenArray encode encode_texts",
    },
)
