"""The options of the methods that generate texts and of those that give vectors, typed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypedDict

from regard.layers.scalar_mix import LayerChoice
from regard.tasks.batching import TooLong

Granularity = Literal["sentence", "word", "token"]
Precision = Literal["float32", "bfloat16"]


class OneTextOptions(TypedDict, total=False):
    """Options of the methods that generate texts, where not as the model's own method; with these
    there is one text for each input.

    beams: beam search.  temperature, top_k, top_p, seed: sampling.
    max_tokens, min_tokens: of an output; max_length_a, max_length_b: at most a * source + b.
    too_long: what happens to an input that is longer than the model reads.
    stop: stop sequences, of language models.  window: whether these go on beyond their context,
        of which they read the last tokens; else a text ends there.
    source_language, target_language: of a model that translates between several.
    renormalize_logits: in beam search, which ranks by the probabilities that filters leave;
        sampling always scales them, so that it has no effect there.
    forced_bos_token_id: of models that answer a source.
    num_beams and so on: the names of transformers (`regard.habit_names`).
    The others: docs/concepts/decoding.md.
    """

    beams: int | None
    length_penalty: Any
    early_stopping: Any
    min_tokens: int | None
    no_repeat_ngram: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    max_tokens: int | None
    max_length_a: float | None
    max_length_b: int | None
    seed: int | None
    assistant_model: Any
    num_assistant_tokens: int | None
    eos: Any
    repetition_penalty: float | None
    bad_words_ids: Sequence[Sequence[int]] | None
    suppress_tokens: Sequence[int] | None
    begin_suppress_tokens: Sequence[int] | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | Sequence[int] | None
    renormalize_logits: bool | None
    too_long: TooLong
    stop: Sequence[str] | str | None
    window: bool
    source_language: str | None
    target_language: str | None
    num_beams: int
    max_new_tokens: int
    min_new_tokens: int
    no_repeat_ngram_size: int
    do_sample: bool


class DecodingOptions(OneTextOptions, total=False):
    """These options, and those by which there are several texts for each input.

    n_best: how many of beam search are returned.  samples: how many are sampled.
    num_return_sequences: either.
    """

    n_best: int | None
    samples: int | None
    num_return_sequences: int


class EmbedOptions(TypedDict, total=False):
    """The options of `embed`.

    layers: the number of a layer or several: 0 is the embeddings, -1 (the default) the last; or a
        `ScalarMix` that was trained.
    combine: how several layers become one vector: "concat" (the default), "sum", "mean", or a list
        with the weight of each.
    pooling: of the tokens of a text, [CLS] and [SEP] among them, or of the subwords of a word:
        "mean", "first", "last", "max"; of a text also the other kinds of
        `regard.layers.pooling.KINDS`. None: of a text as the model's folder says,
        otherwise the mean.
    granularity: what a vector represents: "sentence" (the default: a whole text), "word", or
        "token" (special ones, too).
    normalize: whether vectors are scaled to length 1. None: of a text as the folder says. Cosines,
        which `similarity` and `search` give, are the same in either case.
    precision: "bfloat16" for the matrix products; vectors are float32 in either case.
    max_tokens_per_batch: tokens in a batch, padding included; vectors do not depend on it.
    output_value: sentence-transformers' name for the granularity. Its `batch_size`,
        `show_progress_bar` and `convert_to_numpy=True` are accepted; they change no vector.
    """

    layers: int | Sequence[int] | LayerChoice
    combine: str | Sequence[float]
    pooling: str | None
    granularity: Granularity
    normalize: bool | None
    precision: Precision
    max_tokens_per_batch: int | None
    output_value: Literal["sentence_embedding", "token_embeddings"]
    batch_size: int
    show_progress_bar: bool
    convert_to_numpy: bool


class TextSearchOptions(EmbedOptions, total=False):
    """The options of `embed`, and what happens to texts that are longer than the model reads."""

    too_long: TooLong


class FillOptions(TypedDict, total=False):
    """The options of `fill`.

    top: the number of words that are given for a mask.  among: words, of which one is chosen.
    """

    top: int
    among: Iterable[str] | None
    too_long: TooLong
