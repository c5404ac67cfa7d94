"""Entities as tags of words, and their precision, recall and F1.

A tag is `O`, or a prefix and a type, as in `B-PER`. IOB1 (CoNLL-2003's files) writes `B-` only
between two entities of one type that touch; IOB2 writes it at the start of every entity; IOBES
also marks the last word (`E-`) and entities of one word (`S-`). BILOU, BMES and BMEWO are IOBES
with other letters (`OTHER_LETTERS`), and are read as it.

A predicted entity is correct if a target has its words and its type. Tags are read and entities
scored as conlleval and seqeval's default mode do: every word that is not outside belongs to an
entity, in any scheme.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from regard.errors import RegardError
from regard.metrics.score import LabelCounts, LabelReport, Score, check_any, check_equal


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


def spans(tags: Sequence[str]) -> list[Span]:
    """The entities of one sentence, in order; its tags are of any scheme, well-formed or not.

    Raises:
        RegardError: a tag belongs to no scheme.
    """
    parsed = [*map(_parsed, tags), OUTSIDE]
    entities, end = [], 0
    while end < len(tags):
        start, end = end, end + 1
        if parsed[start] == OUTSIDE:
            continue
        while _continues(parsed[end - 1], parsed[end]):
            end += 1
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


def _parsed(tag: str) -> Tag:
    if tag == "O":
        return OUTSIDE
    prefix, _, kind = tag.partition("-")
    prefix = OTHER_LETTERS.get(prefix, prefix)
    if prefix not in {*"IBES"}:
        raise RegardError(f"The tag {tag!r} must be O, or one of I-, B-, E-, S- and a type.")
    return Tag(prefix, kind or "_")


Sentences = Sequence[Sequence[str]]


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
    """Micro-averaged F1 of entities; 0 to 1."""

    def __init__(self) -> None:
        self.sentences = 0
        self._counts = LabelCounts()

    def add(self, predictions: Sentences, references: Sentences) -> None:
        """The tags of sentences, one for each word.

        Raises:
            RegardError: predictions and references differ in number; a tag is in no scheme.
        """
        check_equal(predictions, references, "sentences", "sentences of references")
        for tags, reference_tags in zip(predictions, references, strict=True):
            check_equal(tags, reference_tags, "predicted tags", "words")
            predicted, target = set(spans(tags)), set(spans(reference_tags))
            columns = predicted & target, predicted, target
            self._counts.add(*([span.type for span in column] for column in columns))
            self.sentences += 1

    def result(self) -> EntityScore:
        """F1 over all entities, with precision and recall, and with a report of each type.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.sentences, "Entity F1")
        types = self._counts.scores()
        micro = types.micro
        signature = "mode:default|scheme:any|average:micro"
        signature += f"|sentences:{self.sentences}|entities:{micro.targets}"
        return EntityScore(
            "entity F1",
            micro.f1,
            signature,
            micro.targets,
            4,
            precision=micro.precision,
            recall=micro.recall,
            report=LabelReport(types, "type"),
        )
