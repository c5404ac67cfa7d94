"""Checks that a tokenizer and a model belong together, before a wrong pair gives wrong results."""

from collections.abc import Mapping
from typing import Any

from regard.errors import CheckpointError, warn
from regard.text.preprocessing import ROLES
from regard.text.tokenizer import Tokenizer

# Many configurations have these ids from another vocabulary; no text is encoded with them.
LOOSE = ("bos", "eos")


def check_tokenizer(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    """Raise an error if an id means one token to the model and another to the tokenizer.

    If config.json gives a role an id that is a special token of another role, that is a warning:
    no text is ever encoded to it.

    config: as in config.json: `vocab_size` and `pad_token_id`, `mask_token_id` and the like. More
        embeddings than tokens are allowed: many models round their vocabulary up.

    Raises:
        CheckpointError: the tokenizer has an id beyond the model's vocabulary, or config.json gives
            a role the id of an ordinary token.
    """
    vocab_size = config.get("vocab_size")
    sizes = {  # published files and ours name the vocabulary that is not `vocab_size` differently
        "sources": config.get("source_vocab_size") or vocab_size,
        "targets": config.get("decoder_vocab_size") or vocab_size,
    }
    if len({*sizes.values()}) > 1 and tokenizer.targets is None:
        raise CheckpointError(
            "The model has a vocabulary of its own for sources, but the folder has one tokenizer. "
            "Use the two that were saved with these weights."
        )
    for side, reader in (("sources", tokenizer), ("targets", tokenizer.for_targets)):
        if (size := sizes[side]) is not None and reader.vocab_size > size:
            largest = reader.vocab_size - 1
            raise CheckpointError(
                f"The tokenizer does not fit the model: its ids go up to {largest:,} "
                f"({reader.token(largest)!r}), but config.json has `vocab_size` {size:,} for "
                f"{side}. "
                "Use the tokenizer that was saved with these weights."
            )
    for role in ROLES:
        config_id, actual = config.get(f"{role}_token_id"), getattr(tokenizer, f"{role}_id")
        if type(config_id) is not int or actual is None or config_id == actual:
            continue
        if role == "bos" and config_id == config.get("decoder_start_token_id"):
            continue  # earlier releases wrote the start of a decoder there
        problem = (
            f"config.json has `{role}_token_id` {config_id}, but the tokenizer's {role} token "
            f"{tokenizer.token(actual)!r} has the id {actual}"
        )
        is_token = config_id in tokenizer.vocab().values()
        if role not in LOOSE and is_token and config_id not in tokenizer.special_ids:
            raise CheckpointError(
                f"The tokenizer does not fit the model: {problem}, and {config_id} is the ordinary "
                f"token {tokenizer.token(config_id)!r} there. Use the tokenizer saved with "
                "these weights."
            )
        warn(f"{problem}. Do they belong together?")
