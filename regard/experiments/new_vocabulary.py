"""[tokenizer] beside [model] path: the words of new data instead of the folder's vocabulary."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Any

from torch import nn

from regard.checkpoints.model_folder import open_folder
from regard.errors import ConfigError
from regard.experiments.build_model import special_ids
from regard.models.resizing import exchange_vocabulary
from regard.text import Tokenizer


def for_vocabulary(model: nn.Module, path: str, tokenizer: Tokenizer) -> nn.Module:
    """The model of a folder for the words of another tokenizer; a warning tells how many are known.

    Tokens are matched by their role, such as end of text, then by their text.

    Raises:
        CheckpointError: the folder has no tokenizer.
        ConfigError: the tokens are no words, or the model has no row for each of them.
    """
    own = open_folder(path).tokenizer()
    if own.vocab() == tokenizer.vocab() and own.roles == tokenizer.roles:
        return model
    if not own.kind == tokenizer.kind == "words":
        raise ConfigError(
            f"[tokenizer] has another vocabulary than {path}, and only words can be exchanged, not "
            f"tokens of the kinds {own.kind!r} and {tokenizer.kind!r}. Leave [tokenizer] out: the "
            "folder has its own."
        )
    known = own.vocab()
    roles = {name: own.roles[role] for role, name in tokenizer.roles.items() if role in own.roles}
    tokens = map(tokenizer.token, range(tokenizer.vocab_size))
    rows = [known.get(roles.get(token, token), -1) for token in tokens]
    new = sum(row < 0 for row in rows)
    warnings.warn(
        f"[tokenizer]: {new:,} of {len(rows):,} words are not in the vocabulary of {path}. They "
        f"start from the mean of its {own.vocab_size:,} vectors; its other words are dropped.",
        stacklevel=4,
    )
    config: Any = model.config
    return exchange_vocabulary(model, rows, **special_ids(tokenizer, asdict(config)))
