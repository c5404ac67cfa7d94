"""Entities as tags of words, and their precision, recall and F1.

A tag is `O`, or a prefix and a type, as in `B-PER`. IOB1 (CoNLL-2003's files) writes `B-` only
between two entities of one type that touch; IOB2 writes it at the start of every entity; IOBES
also marks the last word (`E-`) and entities of one word (`S-`). BILOU, BMES and BMEWO are IOBES
with other letters (`OTHER_LETTERS`), and are read as it.

A predicted entity is correct if a target has its words and its type. Tags are read and entities
scored as seqeval does, lenient (its default mode, which is conlleval's) or strict about a scheme.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from regard.errors import RegardError
from regard.metrics.class_report import COLUMNS, ScoresByLabel
from regard.metrics.score import Score, ScoreReport, ScoreTable, check_any, check_equal


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


def spans(tags: Sequence[str], scheme: str | None = None) -> list[Span]:
    """The entities of one sentence, in order.

    scheme: "IOB1", "IOB2" or "IOBES" to take only what is written as this scheme demands (strict);
    None to take tags of any of them, well-formed or not, as conlleval and seqeval's default do, and
    tags with the letters of BILOU and BMES.

    Raises:
        RegardError: a tag is not in the scheme.
    """
    grammar = LENIENT if scheme is None else SCHEMES[scheme]
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
        RegardError: a tag belongs to no scheme.
    """
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
    allowed = ", ".join(f"{prefix}-" for prefix in prefixes)
    where = f" in {scheme}" if scheme else ""
    raise RegardError(
        f"The tag {tag!r} is none of an entity{where}: a tag is O, or one of {allowed} and a type. "
        "Labels of other kinds are scored by accuracy or F1."
    )


Sentences = Sequence[Sequence[str]]


@dataclass(frozen=True)
class EntityReport(ScoreReport):
    """Precision, recall, F1 and the numbers of entities of each type that is predicted or a target,
    and their averages, as conlleval and seqeval give them.
    """

    types: ScoresByLabel

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        types = asdict(self.types)
        return {"types": types.pop("classes"), **types}

    def table(self) -> ScoreTable:
        """A row for each type, and one for each average."""
        return ScoreTable("Scores of each type", "", ("type", *COLUMNS), self.types.rows())


@dataclass(frozen=True, kw_only=True)
class EntityScore(Score):
    """`value` is the F1 over all entities, of which these are precision and recall."""

    precision: float
    recall: float

    def __str__(self) -> str:
        return (
            f"{self.name} = {self.value:.4f} (precision {self.precision:.4f}, "
            f"recall {self.recall:.4f}) {self.signature}"
        )


class EntityF1:
    """Micro-averaged F1 of entities; 0 to 1.

    scheme: None takes tags in IOB1, IOB2, IOBES or a mixture, as conlleval and seqeval's default
    mode do; a scheme's name counts only entities written as it demands, as seqeval's strict mode.
    """

    def __init__(self, scheme: str | None = None):
        self.scheme = scheme
        self.sentences = 0
        # Memory grows with the types of entities, not with the data.
        self._correct: Counter[str] = Counter()
        self._predicted: Counter[str] = Counter()
        self._target: Counter[str] = Counter()

    def add(self, predictions: Sentences, references: Sentences) -> None:
        """The tags of sentences, one for each word.

        Raises:
            RegardError: predictions and references differ in number; a tag is not in the scheme.
        """
        check_equal(predictions, references, "sentences", "sentences of references")
        for tags, reference_tags in zip(predictions, references, strict=True):
            check_equal(tags, reference_tags, "predicted tags", "words")
            predicted = set(spans(tags, self.scheme))
            target = set(spans(reference_tags, self.scheme))
            self._correct.update(span.type for span in predicted & target)
            self._predicted.update(span.type for span in predicted)
            self._target.update(span.type for span in target)
            self.sentences += 1

    def result(self) -> EntityScore:
        """F1 over all entities, with precision and recall, and with a report of each type.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.sentences, "Entity F1")
        types = ScoresByLabel.of(
            {
                name: (self._correct[name], self._predicted[name], self._target[name])
                for name in sorted(self._predicted | self._target)
            }
        )
        micro = types.micro
        mode = f"mode:strict|scheme:{self.scheme}" if self.scheme else "mode:default|scheme:any"
        signature = f"{mode}|average:micro|sentences:{self.sentences}|entities:{micro.targets}"
        return EntityScore(
            "entity F1",
            micro.f1,
            signature,
            micro.targets,
            4,
            precision=micro.precision,
            recall=micro.recall,
            report=EntityReport(types),
        )
