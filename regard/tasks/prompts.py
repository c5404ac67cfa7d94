"""Prompts in a model's context: what fits, what is cut, and what stops because the context ends.

A model that carries a state has no context (`limit` None), and everything fits.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from regard import decoding
from regard.decoding.hypothesis import Hypothesis
from regard.errors import RegardError
from regard.tasks.batching import TooLong


def room(limit: int | None, options: Mapping[str, Any]) -> int | None:
    """The most tokens that a prompt may have, so that those asked for by name fit behind it.

    The last of them is written and not read. Without a number there must be room for one.
    """
    asked = options.get("max_tokens")
    if limit is None or asked is None:
        return limit
    most = decoding.options(max_tokens=asked).max_tokens
    return max(1, limit + 1 - most) if isinstance(most, int) else limit


def fitting(
    rows: Sequence[list[int]], limit: int | None, too_long: TooLong, options: Mapping[str, Any]
) -> list[list[int]]:
    """The rows, the long ones without their beginning.

    Raises:
        RegardError: a row is too long and `too_long` is "error".
    """
    most = room(limit, options)
    if limit is None or most is None:
        return list(rows)
    long = [i for i, row in enumerate(rows) if len(row) > most]
    if long and too_long == "error":
        asked = options.get("max_tokens") if most != limit else None
        more = f" and up to {asked} more are asked for (max_tokens)" if asked is not None else ""
        raise RegardError(
            f"Prompt {long[0] + 1} has {len(rows[long[0]]):,} tokens{more}, but this model's "
            f"context is {limit:,}. Shorten the prompt, or cut its beginning with "
            "too_long='truncate'."
        )
    return [row[-most:] for row in rows]


def tell_ends(
    rows: Sequence[list[int]], found: Sequence[Hypothesis], limit: int | None, method: Any
) -> None:
    """Warn of texts that stopped because the context did, before anything else would end them."""
    most = method.max_tokens
    ends = [
        one
        for row, one in zip(rows, found, strict=True)
        if limit is not None and not one.finished and len(row) + len(one.tokens) > limit
    ]
    ends = [one for one in ends if not isinstance(most, int) or len(one.tokens) < most]
    if ends:
        warnings.warn(
            f"{len(ends):,} of {len(rows):,} texts stop where the model's context of {limit:,} "
            "tokens does",
            stacklevel=4,
        )
