"""Added tokens: found in a text before it is cut into words, and beyond the vocabulary at times."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import tokenizers

from regard.errors import DataError, RegardError
from regard.text.token_settings import Token, TokenSettings

# The order in which `transformers` adds special tokens that are not in the vocabulary.
ORDER = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def add(fast: tokenizers.Tokenizer, tokens: Sequence[Token]) -> None:
    """Add the tokens, each with the next free id where it is not in the vocabulary.

    One that was added before gets the flags given here.

    Raises:
        RegardError: the next free id is that of another token, for the ids have holes.
    """
    new = [t.content for t in tokens if t.content and fast.token_to_id(t.content) is None]
    before = set(fast.get_vocab(with_added_tokens=True).values()) if new else set()
    fast.add_tokens([token.made() for token in tokens])
    for content in new:
        number = fast.token_to_id(content)
        if number is None or number in before:
            raise RegardError(
                f"the token {content!r} cannot be added: the ids of the vocabulary have holes, and "
                f"the next id, {number}, is taken. Number the vocabulary without holes."
            )


def add_stated(
    path: Path,
    fast: tokenizers.Tokenizer,
    settings: TokenSettings,
    defaults: Mapping[str, Token],
) -> None:
    """Add what the files beside a vocabulary name, in the order in which `transformers` adds it.

    path: of the vocabulary.  defaults: special tokens by role that nothing names, but which are
    there where the vocabulary has them.

    Raises:
        DataError: a file gives a token another id than it has.
    """
    tokens = chosen(fast, settings, defaults)
    _check_named(fast, settings, tokens)
    beyond = _beyond(fast, settings, tokens)
    try:
        add(fast, [token for token in tokens if token.content not in beyond])
    except RegardError as error:
        raise DataError(path, None, str(error)) from None
    for number, (token, file) in settings.added.items():
        found = fast.token_to_id(token.content)
        if found != number and token.content not in beyond:
            problem = f"{token.content!r} must have the next free id, {found}, not {number}."
            raise DataError(file, None, problem, "Is it of this vocabulary?")


def _check_named(
    fast: tokenizers.Tokenizer, settings: TokenSettings, tokens: Sequence[Token]
) -> None:
    """Say which special tokens of the settings are new to the vocabulary.

    Raises:
        DataError: one is, and this library wrote the folder, so that its files must agree.
    """
    new = {token.content for token in tokens if fast.token_to_id(token.content) is None}
    new -= {token.content for token, _ in settings.added.values()}
    for role, name in settings.roles.items():
        if name in new and settings.config.regard_kind is not None:
            problem = f"the {role} piece {name!r} is not in the vocabulary."
            raise DataError(settings.path, None, problem, "Was the file changed?")
        if name in new:
            warnings.warn(
                f"{settings.path}: `{role}_token` {name!r} is not in the vocabulary. It is added "
                "to its end, as `transformers` does; a model needs a vector for it.",
                stacklevel=6,
            )


def _beyond(
    fast: tokenizers.Tokenizer, settings: TokenSettings, tokens: Sequence[Token]
) -> set[str]:
    """The tokens for which the model in the folder has no vector: they are not added.

    Files often name a padding token that was never used. `transformers` adds it, and the model
    fails on the first text that has it.
    """
    new = [t.content for t in tokens if fast.token_to_id(t.content) is None]
    if settings.vocab_size is None or not new:
        return set()
    left = max(0, settings.vocab_size - fast.get_vocab_size(with_added_tokens=True))
    if beyond := new[left:]:
        warnings.warn(
            f"{settings.path}: {', '.join(map(repr, beyond))} would be added to the vocabulary, "
            f"but the model in this folder has only {settings.vocab_size:,} ids (`vocab_size` in "
            "config.json). So no text has this token.",
            stacklevel=6,
        )
    return set(beyond)


def chosen(
    fast: tokenizers.Tokenizer, settings: TokenSettings, defaults: Mapping[str, Token]
) -> list[Token]:
    """The tokens that are to be added; those that are there already may get other flags."""
    named = {role: settings.named[role] for role in ORDER if role in settings.named}
    unnamed = {role: t for role, t in defaults.items() if role not in settings.named}
    held = {r: t for r, t in unnamed.items() if fast.token_to_id(t.content) is not None}
    by_role = {role: (named | held).get(role) for role in ORDER}
    special = {token.content for token in by_role.values() if token is not None}
    added = [token for _, (token, _) in sorted(settings.added.items(), key=lambda one: one[0])]
    tokens = [replace(t, special=t.special or t.content in special) for t in added]
    known = {token.content for token in tokens} | _contents(fast)
    # Of one token with two kinds of flags both are added: the later flags count.
    new = dict.fromkeys(token for token in (*by_role.values(), *settings.extra) if token)
    tokens += [token for token in new if token.content not in known]
    return [token for token in tokens if token.content]


def _contents(fast: tokenizers.Tokenizer) -> set[str]:
    return {token.content for token in fast.get_added_tokens_decoder().values()}
