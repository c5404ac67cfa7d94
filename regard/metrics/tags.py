"""Entities as tags of words: IOB1, IOB2 and IOBES, read as seqeval reads them, and converted.

A tag is `O`, or a prefix and a type, as in `B-PER`. IOB1 (CoNLL-2003's files) writes `B-` only
between two entities of one type that touch; IOB2 writes it at the start of every entity; IOBES
also marks the last word (`E-`) and entities of one word (`S-`). BILOU, BMES and BMEWO are IOBES
with other letters (`OTHER_LETTERS`), and are read as it.
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


class Tag(NamedTuple):
    """The parts of a tag. The type of `O` is empty; that of a prefix alone, as in `B`, is `_`."""

    prefix: str
    type: str


OUTSIDE = Tag("O", "")
OTHER_LETTERS = {"L": "E", "U": "S", "M": "I", "W": "S"}  # of BILOU, BMES and BMEWO


@dataclass(frozen=True)
class Scheme:
    """prefixes: the prefixes beside `O`.  begins(before, tag): whether an entity begins at a tag.
    ends(last, after): whether an entity may end with the tag `last`."""

    prefixes: str
    begins: Callable[[Tag, Tag], bool]
    ends: Callable[[Tag, Tag], bool]


def _begins_iob1(before: Tag, tag: Tag) -> bool:
    """`B-` counts only after a tag of the same type; `I-` begins an entity where none continues."""
    if tag.prefix == "B":
        return before.prefix != "O" and before.type == tag.type
    return tag.prefix == "I" and (before.prefix != "I" or before.type != tag.type)


def _ends_iob1(last: Tag, after: Tag) -> bool:
    """`B-` after a `B-` of another type is against the scheme, and seqeval drops the first."""
    return not (last.prefix == after.prefix == "B" and last.type != after.type)


# What seqeval's strict mode takes for an entity in each scheme.
SCHEMES = {
    "IOB1": Scheme("IB", _begins_iob1, _ends_iob1),
    "IOB2": Scheme("IB", lambda before, tag: tag.prefix == "B", lambda last, after: True),
    "IOBES": Scheme(
        "IBES", lambda before, tag: tag.prefix in "BS", lambda last, after: last.prefix in "ES"
    ),
}
# seqeval's default mode: every word that is not outside belongs to an entity, in any scheme.
LENIENT = Scheme("IBES", lambda before, tag: tag.prefix != "O", lambda last, after: True)


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
    None to take tags of any of them, well-formed or not, as conlleval and seqeval's default do, and
    tags with the letters of BILOU and BMES.

    Raises:
        ConfigError: there is no such scheme.
        RegardError: a tag is not in the scheme.
    """
    grammar = LENIENT if scheme is None else scheme_of(scheme)
    parsed = [_parsed(tag, grammar.prefixes, scheme) for tag in tags] + [OUTSIDE]
    entities, end = [], 0
    while end < len(tags):
        start, end = end, end + 1
        if not grammar.begins(parsed[start - 1] if start else OUTSIDE, parsed[start]):
            continue
        while _continues(parsed[end - 1], parsed[end]):
            end += 1
        if grammar.ends(parsed[end - 1], parsed[end]):
            entities.append(Span(parsed[start].type, start, end))
    return entities


def convert_tags(tags: Sequence[str], scheme: str) -> list[str]:
    """The same entities in another scheme, whatever scheme `tags` are in.

    A classifier of words learns IOB2 or IOBES more easily than IOB1, where the first word's tag
    depends on what stands before it.

    Raises:
        ConfigError: there is no such scheme.
        RegardError: a tag belongs to no scheme.
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


def _continues(before: Tag, tag: Tag) -> bool:
    """Whether the entity of the tag `before` continues with `tag`."""
    return before.prefix in "BI" and tag.prefix in "IE" and before.type == tag.type


def _parsed(tag: str, prefixes: str, scheme: str | None) -> Tag:
    if tag == "O":
        return OUTSIDE
    if isinstance(tag, str):
        prefix, _, kind = tag.partition("-")
        if scheme is None:
            prefix = OTHER_LETTERS.get(prefix, prefix)
        if len(prefix) == 1 and prefix in prefixes:
            return Tag(prefix, kind or "_")
    known = ", ".join(f"{prefix}-" for prefix in prefixes)
    where = f" in {scheme}" if scheme else ""
    raise RegardError(
        f"The tag {tag!r} is none of an entity{where}: a tag is O, or one of {known} and a type. "
        "Labels of other kinds are scored by accuracy or F1."
    )
