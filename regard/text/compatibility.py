"""Whether a tokenizer and a model belong together, before a wrong pair gives wrong numbers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from regard.errors import CheckpointError
from regard.text.special_tokens import ROLES
from regard.text.tokenizer import Tokenizer

# Between texts and around generated ones; configurations carry those of another vocabulary along.
LOOSE = ("bos", "eos")


def check_tokenizer(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    """Refuse a tokenizer whose ids mean something else to the model than to the tokenizer.

    config: as in config.json: `vocab_size` and `pad_token_id`, `mask_token_id` and the like. More
        vectors than pieces are fine: many models round their vocabulary up.

    A special id that is stated otherwise is refused where the tokenizer has an ordinary piece under
    it, and told in a warning where both are special: then no text ever holds it.

    Raises:
        CheckpointError: an id is beyond the vocabulary, or an ordinary piece is special there.
    """
    size = config.get("vocab_size")
    if size is not None and tokenizer.vocab_size > size:
        largest = tokenizer.vocab_size - 1
        raise CheckpointError(
            f"The tokenizer does not fit the model: its ids go up to {largest:,} "
            f"({tokenizer.token(largest)!r}), but config.json has `vocab_size` {size:,}. Use the "
            "tokenizer that was saved with these weights."
        )
    for role in ROLES:
        stated, own = config.get(f"{role}_token_id"), getattr(tokenizer, f"{role}_id")
        if type(stated) is not int or own is None or stated == own:
            continue
        said = (
            f"config.json has `{role}_token_id` {stated}, but the tokenizer's {role} piece "
            f"{tokenizer.token(own)!r} has the id {own}"
        )
        ordinary = _piece(tokenizer, stated) if stated not in tokenizer.special_ids else None
        if ordinary is not None and role not in LOOSE:
            raise CheckpointError(
                f"The tokenizer does not fit the model: {said}, and {stated} is the ordinary piece "
                f"{ordinary!r} there. Use the tokenizer that was saved with these weights."
            )
        warnings.warn(f"{said}. Do they belong together?", stacklevel=2)


def _piece(tokenizer: Tokenizer, number: int) -> str | None:
    """The piece with this id, None where there is none."""
    return next((piece for piece, i in tokenizer.vocab().items() if i == number), None)
