"""Options of calls, each declared once: keywords, recipes, flags and requests have the same.

    class DecodingSection(with_fields(Options, DecodingFields)):  # of a recipe; so do requests

An annotation of a TypedDict has the type of an option with its bounds, and says what it does. None
is an option that is not given.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

from pydantic import BaseModel, Field, create_model

from regard.decoding import option_types as of

Granularity = Literal["sentence", "word", "token"]
Precision = Literal["float32", "bfloat16"]
# An error for the first wrong value, not for each.
Layers = Annotated[list[int], Field(fail_fast=True)]
Weights = Annotated[list[float], Field(fail_fast=True)]


class DecodingFields(TypedDict, total=False):
    """How a text is generated, where it differs from the model's own settings."""

    beams: Annotated[of.SequenceCount | None, "Decode with beam search and this many beams."]
    n_best: Annotated[of.SequenceCount | None, "Return this many hypotheses, the best first."]
    length_penalty: Annotated[
        of.Exponent | str | None, "Rank hypotheses by score / length^A; gnmt:A is Wu et al.'s."
    ]
    early_stopping: Annotated[
        of.EarlyStopping | None,
        "End a beam search when it has enough hypotheses (true), when a better one is unlikely "
        "(false) or impossible (never).",
    ]
    temperature: Annotated[of.Temperature | None, "Sample the tokens at this temperature."]
    top_k: Annotated[of.Count | None, "Sample among this many tokens, the most probable ones."]
    top_p: Annotated[
        of.Probability | None,
        "Sample among the most probable tokens that together have this probability.",
    ]
    samples: Annotated[of.SequenceCount | None, "Sample this many outputs for each text."]
    seed: Annotated[of.Seed | None, "Draw the samples with this seed."]
    no_repeat_ngram: Annotated[of.Count | None, "Write no sequence of this many tokens twice."]
    min_tokens: Annotated[of.CountOrZero | None, "Write at least this many tokens."]
    max_tokens: Annotated[of.Count | None, "End an output after this many tokens."]
    max_length_a: Annotated[
        of.Ratio | None, "End an output after A times the tokens of its source, plus B."
    ]
    max_length_b: Annotated[of.Count | None, "The tokens B of the limit that max_length_a sets."]


class LanguageFields(TypedDict, total=False):
    """The languages of a model with several."""

    source_language: Annotated[str | None, "Language of the source (multilingual models)."]
    target_language: Annotated[str | None, "Language of the output (multilingual models)."]


class VectorFields(TypedDict, total=False):
    """What a vector is made of."""

    layers: Annotated[
        int | Layers | None,
        "The number of a layer, or several: 0 is the embeddings, -1 (the default) the last.",
    ]
    combine: Annotated[
        str | Weights | None,
        "Combine several layers: concat (the default), sum, mean, or the weight of each.",
    ]
    pooling: Annotated[
        str | None, "Pool the states of tokens by mean, first, last or max; default: the folder's."
    ]
    granularity: Annotated[
        Granularity | None, "Compute a vector for each sentence (a whole text), word or token."
    ]
    normalize: Annotated[
        bool | None, "Scale vectors to length 1 or not; default: as the folder says."
    ]
    truncate_dim: Annotated[
        of.Count | None,
        "Keep the first N dimensions of the vector of a text, of a model trained for it.",
    ]
    precision: Annotated[Precision | None, "Compute matrix products in this precision."]


class StateFields(TypedDict, total=False):
    """How a model that carries a state reads a text for its perplexity."""

    target_length: Annotated[
        of.Count | None,
        "Read N tokens at a time with a recurrent state; default: the model's own number, or any.",
    ]
    memory_length: Annotated[
        of.CountOrZero | None,
        "Keep N positions in Transformer-XL's memory; default: as in training.",
    ]
    max_distance: Annotated[
        of.Count | None,
        "Clamp distances of Transformer-XL at N positions; default: as in training.",
    ]
    neural_cache: Annotated[
        of.Count | None, "Add a neural cache of N positions (Grave et al. 2017)."
    ]
    neural_cache_theta: Annotated[
        Annotated[float, Field(ge=0, allow_inf_nan=False)] | None,
        "The flatness theta of the neural cache's distribution; default: 0.3.",
    ]
    neural_cache_weight: Annotated[
        Annotated[float, Field(ge=0, lt=1)] | None,
        "The weight of the neural cache in the mixture with the model; default: 0.1.",
    ]


class PerplexityFields(StateFields, total=False):
    """How a text is read for its perplexity, where it differs from the model's own settings."""

    window: Annotated[
        of.Count | None,
        "Score a text in windows of N tokens; default: the model's context, or for a model that "
        "carries a state the whole text.",
    ]
    stride: Annotated[
        of.Count | None,
        "Begin a new window every N tokens; default: its length, without overlap.",
    ]


def with_fields(base: type[BaseModel], *options: Any) -> Any:
    """A model with the options as further fields, None where they are not given."""
    fields = {
        name: (hint, Field(None, description=hint.__metadata__[-1]))
        for each in options
        for name, hint in get_type_hints(each, include_extras=True).items()
    }
    return create_model(base.__name__, __base__=base, **fields)  # type: ignore[call-overload]


class DecodingOptions(DecodingFields, LanguageFields, total=False):
    """Options of the methods that generate texts, where not as the model's own method.

    too_long: what happens to an input that is longer than the model reads.
    stop: stop sequences, of language models.  window: whether these go on beyond their context,
        of which they read the last tokens; else a text ends there.
    renormalize_logits: in beam search, which ranks by the probabilities that filters leave;
        sampling always scales them, so that it has no effect there.
    forced_bos_token_id: of models that answer a source.
    num_beams and so on: the names of transformers (`regard.habit_names`).
    The others: docs/concepts/decoding.md.
    """

    eos: Any
    repetition_penalty: float | None
    bad_words_ids: Sequence[Sequence[int]] | None
    suppress_tokens: Sequence[int] | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | Sequence[int] | None
    renormalize_logits: bool | None
    too_long: Literal["error", "truncate"]
    stop: Sequence[str] | str | None
    window: bool
    num_beams: int
    max_new_tokens: int
    min_new_tokens: int
    no_repeat_ngram_size: int
    do_sample: bool
    num_return_sequences: int
