"""Entities as tags of words: IOB1, IOB2 and IOBES, read as seqeval reads them, and converted.

A tag is `O`, or a prefix and a type, as in `B-PER`. IOB1 (CoNLL-2003's files) writes `B-` only
between two entities of one type that touch; IOB2 writes it at the start of every entity; IOBES
also marks the last word (`E-`) and entities of one word (`S-`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from regard.errors import ConfigError, RegardError
from regard.suggest import nearest


class Span(NamedTuple):
    """An entity of this type in the words from `start` to before `stop`."""

    type: str
    start: int
    stop: int


class Word(NamedTuple):
    """A tag, taken apart. Of `O` the type is empty; of a prefix alone, as in `B`, it is `_`."""

    prefix: str
    type: str


OUTSIDE = Word("O", "")


@dataclass(frozen=True)
class Scheme:
    """prefixes: that may occur beside `O`.  begins(before, word): a word opens an entity.
    ends(last, after): what was opened is an entity, if `last` is its last word."""

    prefixes: str
    begins: Callable[[Word, Word], bool]
    ends: Callable[[Word, Word], bool]


def _begins_iob1(before: Word, word: Word) -> bool:
    """`B-` has a meaning only after a word of the same type; `I-` opens where nothing goes on."""
    if word.prefix == "B":
        return before.prefix != "O" and before.type == word.type
    return word.prefix == "I" and (before.prefix != "I" or before.type != word.type)


def _ends_iob1(last: Word, after: Word) -> bool:
    """`B-` after a `B-` of another type is against the scheme, and seqeval drops the first."""
    return not (last.prefix == after.prefix == "B" and last.type != after.type)


# What seqeval's strict mode takes for an entity in each scheme.
SCHEMES = {
    "IOB1": Scheme("IB", _begins_iob1, _ends_iob1),
    "IOB2": Scheme("IB", lambda before, word: word.prefix == "B", lambda last, after: True),
    "IOBES": Scheme(
        "IBES", lambda before, word: word.prefix in "BS", lambda last, after: last.prefix in "ES"
    ),
}
# seqeval's default mode: every word that is not outside belongs to an entity, in any scheme.
LENIENT = Scheme("IBES", lambda before, word: word.prefix != "O", lambda last, after: True)


def scheme_of(name: str) -> Scheme:
    """The scheme of this name.

    Raises:
        ConfigError: there is no such scheme; the nearest one is offered.
    """
    if name not in SCHEMES:
        raise ConfigError(f"There is no scheme of tags {name!r}. {nearest(name, SCHEMES)}")
    return SCHEMES[name]


def spans(tags: Sequence[str], scheme: str | None = None) -> list[Span]:
    """The entities of one sentence, in order.

    scheme: "IOB1", "IOB2" or "IOBES" to take only what is written as this scheme demands (strict);
    None to take tags of any of them, well-formed or not, as conlleval and seqeval's default do.

    Raises:
        ConfigError: there is no such scheme.
        RegardError: a tag is not one of the scheme's.
    """
    grammar = LENIENT if scheme is None else scheme_of(scheme)
    words = [_word(tag, grammar.prefixes, scheme) for tag in tags] + [OUTSIDE]
    found, at = [], 0
    while at < len(tags):
        start, at = at, at + 1
        if not grammar.begins(words[start - 1] if start else OUTSIDE, words[start]):
            continue
        while _continues(words[at - 1], words[at]):
            at += 1
        if grammar.ends(words[at - 1], words[at]):
            found.append(Span(words[start].type, start, at))
    return found


def convert(tags: Sequence[str], scheme: str) -> list[str]:
    """The same entities in another scheme, whatever scheme `tags` are in.

    A classifier of words learns IOB2 or IOBES more easily than IOB1, where the first word's tag
    depends on what stands before it.

    Raises:
        ConfigError: there is no such scheme.
        RegardError: a tag is none of any scheme.
    """
    scheme_of(scheme)
    converted, before = ["O"] * len(tags), Span("", 0, 0)
    for span in spans(tags):
        touches = span.start == before.stop and span.type == before.type
        prefixes = _prefixes(span.stop - span.start, scheme, touches)
        converted[span.start : span.stop] = [f"{prefix}-{span.type}" for prefix in prefixes]
        before = span
    return converted


def _prefixes(length: int, scheme: str, touches: bool) -> str:
    """For the words of one entity; `touches`: right after another of its type."""
    if scheme == "IOBES":
        return "S" if length == 1 else "B" + "I" * (length - 2) + "E"
    first = "B" if scheme == "IOB2" or touches else "I"
    return first + "I" * (length - 1)


def _continues(before: Word, word: Word) -> bool:
    """Whether an entity that holds `before` holds `word` too."""
    return before.prefix in "BI" and word.prefix in "IE" and before.type == word.type


def _word(tag: str, prefixes: str, scheme: str | None) -> Word:
    if tag == "O":
        return OUTSIDE
    if isinstance(tag, str):
        prefix, _, kind = tag.partition("-")
        if len(prefix) == 1 and prefix in prefixes:
            return Word(prefix, kind or "_")
    known = ", ".join(f"{prefix}-" for prefix in prefixes)
    where = f" in {scheme}" if scheme else ""
    raise RegardError(
        f"The tag {tag!r} is none of an entity{where}: a tag is O, or one of {known} and a type. "
        "Labels of other kinds are scored by accuracy or F1."
    )
