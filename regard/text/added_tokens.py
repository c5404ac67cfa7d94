"""Adds the tokens of a folder's files to a tokenizer: those found before a text is split."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import tokenizers

from regard.errors import DataError, RegardError
from regard.text.token_settings import AddedTokenSpec, TokenSettings

# The order in which `transformers` adds special tokens that are not in the vocabulary.
ORDER = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def add(fast: tokenizers.Tokenizer, tokens: Sequence[AddedTokenSpec]) -> None:
    """Add the tokens; one that is not in the vocabulary gets the next free id.

    A token that was added before gets the flags given here.

    Raises:
        RegardError: the next id belongs to another token, because the ids are not contiguous.
    """
    new = [t.content for t in tokens if t.content and fast.token_to_id(t.content) is None]
    before = set(fast.get_vocab(with_added_tokens=True).values()) if new else set()
    fast.add_tokens([token.to_added_token() for token in tokens])
    for content in new:
        number = fast.token_to_id(content)
        if number is None or number in before:
            raise RegardError(
                f"the token {content!r} cannot be added: the ids of the vocabulary are not "
                f"contiguous, and the next id, {number}, is in use. Use contiguous ids, from 0."
            )


def add_from_settings(
    path: Path,
    fast: tokenizers.Tokenizer,
    settings: TokenSettings,
    defaults: Mapping[str, AddedTokenSpec],
) -> None:
    """Add the tokens of the files beside a vocabulary, in the order in which `transformers` does.

    path: of the vocabulary.  defaults: special tokens by role, for roles that no file names; one is
    used if the vocabulary contains it.

    Raises:
        DataError: the id of a token in a file is not the one that it gets.
    """
    tokens = tokens_to_add(fast, settings, defaults)
    _check_named(fast, settings, tokens)
    beyond = _without_vector(fast, settings, tokens)
    try:
        add(fast, [token for token in tokens if token.content not in beyond])
    except RegardError as error:
        raise DataError(path, None, str(error)) from None
    for number, (token, file) in settings.added.items():
        actual = fast.token_to_id(token.content)
        if actual != number and token.content not in beyond:
            problem = f"{token.content!r} must have the next free id, {actual}, not {number}."
            raise DataError(file, None, problem, "Does the file belong to this vocabulary?")


def _check_named(
    fast: tokenizers.Tokenizer, settings: TokenSettings, tokens: Sequence[AddedTokenSpec]
) -> None:
    """Warn about special tokens of the settings that are not in the vocabulary.

    Raises:
        DataError: there is one although this library wrote the folder, whose files must agree.
    """
    new = {token.content for token in tokens if fast.token_to_id(token.content) is None}
    new -= {token.content for token, _ in settings.added.values()}
    for role, name in settings.roles.items():
        if name in new and settings.config.regard_kind is not None:
            problem = f"the {role} token {name!r} is not in the vocabulary."
            raise DataError(settings.path, None, problem, "Was the file changed?")
        if name in new:
            warnings.warn(
                f"{settings.path}: `{role}_token` {name!r} is not in the vocabulary. It is added "
                "at its end, as in `transformers`; the model needs an embedding for it.",
                stacklevel=6,
            )


def _without_vector(
    fast: tokenizers.Tokenizer, settings: TokenSettings, tokens: Sequence[AddedTokenSpec]
) -> set[str]:
    """The tokens for which the model in the folder has no embedding; they are not added.

    Files often name a padding token that was never used. `transformers` adds it, and the model
    fails on the first text that contains it.
    """
    new = [t.content for t in tokens if fast.token_to_id(t.content) is None]
    if settings.vocab_size is None or not new:
        return set()
    left = max(0, settings.vocab_size - fast.get_vocab_size(with_added_tokens=True))
    if beyond := new[left:]:
        warnings.warn(
            f"{settings.path}: {', '.join(map(repr, beyond))} would be added to the vocabulary, "
            f"but the model in this folder has only {settings.vocab_size:,} ids (`vocab_size` in "
            "config.json). It is left out.",
            stacklevel=6,
        )
    return set(beyond)


def tokens_to_add(
    fast: tokenizers.Tokenizer, settings: TokenSettings, defaults: Mapping[str, AddedTokenSpec]
) -> list[AddedTokenSpec]:
    """The tokens to be added; those that the tokenizer has already may get other flags."""
    named = {role: settings.named[role] for role in ORDER if role in settings.named}
    unnamed = {role: t for role, t in defaults.items() if role not in settings.named}
    present = {r: t for r, t in unnamed.items() if fast.token_to_id(t.content) is not None}
    by_role = {role: (named | present).get(role) for role in ORDER}
    special = {token.content for token in by_role.values() if token is not None}
    added = [token for _, (token, _) in sorted(settings.added.items(), key=lambda item: item[0])]
    tokens = [replace(t, special=t.special or t.content in special) for t in added]
    listed = {token.content for token in tokens} | _contents(fast)
    # A token that occurs with two sets of flags is added twice: the later flags are used.
    new = dict.fromkeys(token for token in (*by_role.values(), *settings.extra) if token)
    tokens += [token for token in new if token.content not in listed]
    return [token for token in tokens if token.content]


def _contents(fast: tokenizers.Tokenizer) -> set[str]:
    return {token.content for token in fast.get_added_tokens_decoder().values()}
