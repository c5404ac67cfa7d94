"""Trains a tokenizer of any kind on texts that are read once, as a stream."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from importlib import import_module
from typing import Annotated, Any

import tokenizers
from pydantic import Field
from tokenizers import AddedToken

from regard.errors import ConfigError, RegardError, check_choice
from regard.schema import checked
from regard.suggest import check_options
from regard.text import KINDS
from regard.text.preprocessing import Preprocessing, TrainerInput, roles_of
from regard.text.tokenizer import Tokenizer, text_problem

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
WHERE = "The training of a tokenizer"  # for errors
MOST = 2**31 - 1
BOUNDS: dict[str, Any] = {
    "min_frequency": Annotated[int, Field(ge=0, le=MOST)],
    "character_coverage": Annotated[float, Field(ge=0.98, le=1)],
}


def train(
    kind: str,
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: Iterable[str] = SPECIAL_TOKENS,
    *,
    roles: dict[str, str] | None = None,
    read_special_tokens: bool = False,
    **options: Any,
) -> Tokenizer:
    """Train a tokenizer with a vocabulary of at most `vocab_size` tokens.

    kind: a key of `regard.text.KINDS`
    texts: any iterable of str, read once; memory grows with the number of different words,
        never with the length of the stream
    special_tokens: they take the first ids, in this order. <pad> <s> </s> <unk>, [CLS], [SEP],
        [MASK] and the like are known by name; `roles={"pad": "…"}` names others
    read_special_tokens: whether `encode` recognizes a special token written in a text
    options: the fields of `Preprocessing` (unicode_form, clean, isolate_cjk, strip_accents,
        lowercase, split), and those of the kind's own trainer, such as min_frequency

    The same texts in the same order give the same tokenizer, on every machine.

    Raises:
        ConfigError: the kind or an option is unknown, a value is of a wrong type or out of range,
            or `vocab_size` cannot hold the alphabet.
        RegardError: a text is no str, or has half of a surrogate pair.
    """
    check_choice("kind", kind, KINDS)
    learn, preprocessing, trainer_options = _resolve(kind, options)
    names = [special_tokens] if isinstance(special_tokens, str) else list(special_tokens)
    if len({*names}) < len(names) or not all(names) or any(map(text_problem, names)):
        raise ConfigError(f"`special_tokens` must be different, non-empty texts, but is {names}.")
    _checked_option("vocab_size", vocab_size, Annotated[int, Field(ge=len(names) + 1, le=MOST)])
    inputs = TrainerInput(kind, _checked(texts), vocab_size, names, preprocessing)
    fast = learn(inputs, **trainer_options)
    fast.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    return Tokenizer(
        fast, kind, roles_of(names) | (roles or {}), reads_special_tokens=read_special_tokens
    )


def _resolve(
    kind: str, options: dict[str, Any]
) -> tuple[Callable[..., tokenizers.Tokenizer], Preprocessing, dict[str, Any]]:
    """The kind's trainer, its preprocessing of text, and the options that are the trainer's own."""
    address, defaults = KINDS[kind]
    module, _, function = address.partition(":")
    learn = getattr(import_module(module), function)
    parameters = inspect.signature(learn).parameters.values()
    defined = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    shared = [field.name for field in fields(Preprocessing)]
    check_options(kind, options, [*defined, *shared])
    for name, bounds in BOUNDS.items():
        if name in options:
            _checked_option(name, options[name], bounds)
    of_texts = defaults | {k: v for k, v in options.items() if k in shared}
    preprocessing = checked(of_texts, Preprocessing, WHERE, ConfigError)
    return learn, preprocessing, {k: v for k, v in options.items() if k in defined}


def _checked_option(name: str, value: object, bounds: Any) -> None:
    """Raises ConfigError: an option is of another type or out of range."""
    checked(value, bounds, WHERE, ConfigError, name)


def _checked(texts: Iterable[str]) -> Iterator[str]:
    """The texts; raises an error for the first that is not a text."""
    if isinstance(texts, str):
        raise ConfigError("`texts` must be an iterable of texts, but is one str. Wrap it: [text].")
    index = -1
    for index, text in enumerate(texts):
        if problem := text_problem(text):
            raise RegardError(f"text {index} cannot be used: {problem}")
        yield text
    if index < 0:
        raise RegardError("`texts` must hold at least one text, but is empty.")
