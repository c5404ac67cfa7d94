"""Prompts in the context of a model: their capacity, truncation, and texts that reach its end.

A model that carries a state has no context (`limit` None): every prompt fits.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from regard import decoding, habit_names
from regard.decoding.steps import Hypothesis
from regard.errors import ConfigError, TextTooLong
from regard.tasks.batching import TooLong, check_too_long
from regard.text import Tokenizer


def prompt_capacity(limit: int | None, options: Mapping[str, Any]) -> int | None:
    """The most tokens of a prompt after which `max_tokens` of `options` fit into the context.

    The last generated token is not read. Without `max_tokens`, or where it is relative to the
    prompt, one token must fit.

    Raises:
        ConfigError: `max_tokens` is larger than the context.
    """
    most_tokens = habit_names.decoding(options).get("max_tokens")
    if limit is None or most_tokens is None:
        return limit
    count = decoding.options(max_tokens=most_tokens).max_tokens
    if not isinstance(count, int):
        return limit
    if count > limit:
        raise ConfigError(
            f"Up to {count:,} tokens are asked for, but this model's context is {limit:,}. Lower "
            "`max_tokens`, or go on beyond the context: `window=True` (`--window`)."
        )
    return limit + 1 - count


def fitted_prompts(
    prompts: Sequence[list[int]],
    limit: int | None,
    too_long: TooLong,
    options: Mapping[str, Any],
) -> list[list[int]]:
    """The ids of prompts; long ones lose their beginning.

    Raises:
        TextTooLong: a prompt is too long and `too_long` is "error".
        ConfigError: `max_tokens` is larger than the context.
    """
    check_too_long(too_long)
    capacity = prompt_capacity(limit, options)
    if limit is None or capacity is None:
        return list(prompts)
    long = [i for i, ids in enumerate(prompts) if len(ids) > capacity]
    if long and too_long == "error":
        more, shorten = "", "Shorten the prompt"
        if capacity != limit:
            more = f" and up to {limit + 1 - capacity} more are asked for (max_tokens)"
            shorten = "Shorten the prompt, or lower `max_tokens`"
        count = len(prompts[long[0]])
        problem = f"has {count:,} tokens{more}, but this model's context is {limit:,}."
        raise TextTooLong(long[0], problem, shorten, "cut its beginning", what="Prompt")
    return [ids[-capacity:] for ids in prompts]


def first_tokens(texts: Sequence[str], tokenizer: Tokenizer, count: int) -> list[str]:
    """The beginnings of texts, of at most `count` tokens each."""
    cut = tokenizer.decode_many(ids[:count] for ids in tokenizer.encode_many(texts))
    # A part of a character is decoded as U+FFFD, which may have more tokens than the part.
    return [text.rstrip("\ufffd") for text in cut]


def warn_of_length_ends(
    counts: Iterable[int], hypotheses: Sequence[Hypothesis], limit: int | None, method: Any
) -> None:
    """Warn of texts that stopped at the end of what a model reads before anything else ended them.

    counts: tokens before each text that count for `limit`; a start token where there is none.
    """
    if limit is None:
        return
    longest = method.max_tokens if isinstance(method.max_tokens, int) else limit + 1
    ends = [
        hypothesis
        for count, hypothesis in zip(counts, hypotheses, strict=True)
        if not hypothesis.finished
        and max(count, 1) + len(hypothesis.tokens) > limit
        and len(hypothesis.tokens) < longest
    ]
    if ends:
        warnings.warn(
            f"{len(ends):,} of {len(hypotheses):,} texts stop at this model's limit of {limit:,} "
            "tokens",
            stacklevel=4,
        )


@contextmanager
def without_length_warnings() -> Iterator[None]:
    """No such warnings: for samples that a training shows, of which few end at first."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"[\d,]+ of [\d,]+ texts stop at")
        yield
