"""The language tokens of multilingual encoder-decoders, and what stands around texts.

    Marian     `>>fra<< text </s>`: a token in the text names the language to translate into
    mBART      `text </s> en_XX`; targets begin with `fr_XX` in the place of a start token
    mBART-50   `en_XX text </s>`; targets begin with the start token and `fr_XX`
    M2M-100    `__en__ text </s>`; targets alike, with `__fr__`
    NLLB       `eng_Latn text </s>`, or `text </s> eng_Latn` (legacy); targets begin with `fra_Latn`

The template of the tokenizer has a token of the source language, in whose place another one comes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from regard.errors import ConfigError
from regard.text.tokenizer import Tokenizer

Ids = tuple[int, ...]
CODE = re.compile(r">>(.+)<<")
NAMED = (
    re.compile(r"__([a-z]{2,3})__"),
    re.compile(r"([a-z]{2,3}_[A-Z]{2})"),
    re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"),
)
MBART = NAMED[1]


@dataclass(frozen=True)
class Frame:
    """What stands around texts.

    prefix: before a source, as a text.  source, target: the ids before and after.
    first: with which token each target begins behind the start token; None: with any.
    named: whether the language of targets is known.
    """

    prefix: str
    source: tuple[Ids, Ids]
    target: tuple[Ids, Ids]
    first: int | None = None
    named: bool = True


def languages_of(tokenizer: Tokenizer) -> dict[str, int]:
    """The languages that special tokens of a tokenizer name -> their ids; {} for none.

    A single `xx_XX` or `__xx__` names none: it may be another kind of token.
    """
    tokens = [(tokenizer.token(i), i) for i in sorted(tokenizer.special_ids)]
    for pattern in (CODE, *NAMED):
        found = {match[1]: i for token, i in tokens if (match := pattern.fullmatch(token))}
        if len(found) > (pattern is not CODE):
            return found
    return {}


def frame_of(
    tokenizer: Tokenizer, start: int, source: str | None = None, target: str | None = None
) -> Frame:
    """What stands around sources and targets of an encoder-decoder.

    start: the token with which the decoder starts.  source, target: languages; None: the one of the
        tokenizer's template; of targets, none is named.

    Raises:
        ConfigError: the tokenizer has no token that ends a sentence, or not this language.
    """
    end = sentence_end(tokenizer)
    languages = languages_of(tokenizer)
    template = tokenizer.template
    before, after = (
        (tuple(i for i, _ in part) for part in template.single) if template else ((), (end,))
    )
    if end not in after:
        before, after = (), (end,)
    ids = {
        name: _id(languages, one, name)
        for name, one in (("source_language", source), ("target_language", target))
    }
    into = ids["target_language"]
    own = next((i for i in (*before, *after) if i in languages.values()), None)
    if own is None:  # the text names it, or there are none
        if source is not None:
            raise ConfigError(
                "`source_language` has no effect: this model knows the language of a source from "
                "its text. Leave it out."
            )
        prefix = "" if target is None else f">>{target}<< "
        plain = not languages or target is not None
        return Frame(prefix, (before, after), ((start, *before), after), named=plain)
    spoken = ids["source_language"] or own
    around = tuple(tuple(spoken if i == own else i for i in part) for part in (before, after))
    code = tokenizer.token(own)
    starts = own in after and MBART.fullmatch(code) is not None
    if starts and into not in (None, start):
        raise ConfigError(
            f"`target_language` must be the one with which config.json has the decoder start, "
            f"{tokenizer.token(start)!r}, but is {target!r}. To translate into another language, "
            "change `decoder_start_token_id` there and in generation_config.json."
        )
    first = () if starts or into is None else (into,)
    return Frame(
        "",
        (around[0], around[1]),
        ((start, *first), (end,)),
        None if starts else into,
        named=starts or into is not None,
    )


def _id(languages: Mapping[str, int], language: str | None, option: str) -> int | None:
    """The id of a language.

    Raises:
        ConfigError: there is no such language.
    """
    if language is None:
        return None
    if not languages:
        raise ConfigError(
            f"`{option}` is {language!r}, but the vocabulary of this model has no tokens of "
            "languages. Leave it out."
        )
    if language not in languages:
        raise ConfigError(
            f"`{option}` is {language!r}, but this model does not have that language. It has: "
            f"{', '.join(sorted(languages))}."
        )
    return languages[language]


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
