"""The language tokens of multilingual encoder-decoders, before and after texts.

    Marian     `>>fra<< text </s>`: a token in the text names the language to translate into
    mBART      `text </s> en_XX`; targets begin with `fr_XX` instead of a start token
    mBART-50   `en_XX text </s>`; targets begin with the start token and `fr_XX`
    M2M-100    `__en__ text </s>`; targets alike, with `__fr__`
    NLLB       `eng_Latn text </s>`, or `text </s> eng_Latn` (legacy); targets begin with `fra_Latn`

The tokenizer's template contains the token of one source language; it is replaced by that of the
language asked for.
"""

import re
from dataclasses import dataclass

from regard.errors import ConfigError
from regard.text.tokenizer import Tokenizer

Ids = tuple[int, ...]
LANGUAGE_CODE = re.compile(r">>(.*?)<<", re.DOTALL)
"""At the beginning of a text: the language to translate into. Marian has a token for it."""
NAMED = (
    re.compile(r"__([a-z]{2,3})__"),
    re.compile(r"([a-z]{2,3}_[A-Z]{2})"),
    re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"),
)
MBART = NAMED[1]


@dataclass(frozen=True)
class LanguageTokens:
    """The special tokens before and after sources and targets.

    source_prefix: text before a source.  source, target: the ids before and after.
    forced_first: the id that every target has after the start token; None: the model chooses.
    target_is_known: whether the language of targets is known.
    """

    source_prefix: str
    source: tuple[Ids, Ids]
    target: tuple[Ids, Ids]
    forced_first: int | None = None
    target_is_known: bool = True


def languages_of(tokenizer: Tokenizer) -> dict[str, int]:
    """The languages that special tokens of a tokenizer name -> their ids; {} for none.

    A single `xx_XX` or `__xx__` names none: it may be another kind of token.
    """
    tokens = [(tokenizer.token(i), i) for i in sorted(tokenizer.special_ids)]
    for pattern in (LANGUAGE_CODE, *NAMED):
        ids = {match[1]: i for token, i in tokens if (match := pattern.fullmatch(token))}
        if len(ids) > (pattern is not LANGUAGE_CODE):
            return ids
    return {}


def language_tokens(
    tokenizer: Tokenizer, start: int, source: str | None = None, target: str | None = None
) -> LanguageTokens:
    """The special tokens before and after sources and targets of an encoder-decoder.

    start: the token with which the decoder starts.  source, target: languages; None: the one of the
        tokenizer's template; for targets, not given.

    Raises:
        ConfigError: the tokenizer has no token that ends a sentence, or not this language.
    """
    languages = languages_of(tokenizer)
    for option, language in (("source_language", source), ("target_language", target)):
        if language is not None and language not in languages:
            raise ConfigError(
                f"`{option}` is {language!r}, but this model does not have that language. It has: "
                f"{', '.join(sorted(languages)) or 'none'}."
            )
    source_id, target_id = (
        None if language is None else languages[language] for language in (source, target)
    )
    before, after = _template_ids(tokenizer)
    template_language = next((i for i in (*before, *after) if i in languages.values()), None)
    if template_language is None:
        if source is not None:
            raise ConfigError(
                "`source_language` has no effect: this model knows the language of a source from "
                "its text. Leave it out."
            )
        source_prefix = "" if target is None else f">>{target}<< "
        known_target = not languages or target is not None
        first, last = _template_ids(tokenizer.for_targets)
        ids = (before, after), ((start, *first), last)
        return LanguageTokens(source_prefix, *ids, target_is_known=known_target)
    replaced = {template_language: source_id or template_language}
    around = tuple(tuple(replaced.get(i, i) for i in ids) for ids in (before, after))
    end = sentence_end(tokenizer)
    if template_language in after and MBART.fullmatch(tokenizer.token(template_language)):
        if target_id not in (None, start):
            raise ConfigError(
                f"`target_language` must be {tokenizer.token(start)!r}, the "
                f"`decoder_start_token_id` of config.json, but is {target!r}. To translate into "
                "another language, change it there and in generation_config.json."
            )
        return LanguageTokens("", (around[0], around[1]), ((start,), (end,)))
    first = () if target_id is None else (target_id,)
    ids = (around[0], around[1]), ((start, *first), (end,))
    return LanguageTokens("", *ids, target_id, target_is_known=target_id is not None)


def _template_ids(tokenizer: Tokenizer) -> tuple[Ids, Ids]:
    """The ids before and after one text; without the end of a sentence, that alone."""
    end, template = sentence_end(tokenizer), tokenizer.template
    if template is None:
        return (), (end,)
    before, after = (tuple(i for i, _ in part) for part in template.single)
    return (before, after) if end in after else ((), (end,))


def sentence_end(tokenizer: Tokenizer) -> int:
    """The id of the token that ends a sentence.

    Raises:
        ConfigError: there is none.
    """
    if tokenizer.eos_id is None:
        raise ConfigError(
            "This task needs a tokenizer with a token that ends a sentence, such as </s>, but "
            "this one has none. Train one, or name it in tokenizer_config.json (`eos_token`)."
        )
    return tokenizer.eos_id
