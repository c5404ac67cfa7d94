"""The relation between two spans of a text, such as Cause-Effect(e1,e2).

Markers stand around both spans, and the head reads the states of the opening ones (Baldini Soares
et al. 2019, "Matching the Blanks", section 3.2: entity markers, entity start):

    The [E1] storm [/E1] caused the [E2] flood [/E2]        scores = W [h_E1; h_E2] + b
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from regard.data import RowReader, Sequences, open_table
from regard.data.encoder_inputs import InputFormat, Texts
from regard.data.files import ending, lines
from regard.data.in_memory import is_path
from regard.data.readers import Numbered
from regard.errors import TextError
from regard.habit_names import TACRED
from regard.layers.task_heads import HEAD_INIT, ClassificationHead, every_token, init_weights
from regard.models.conversions import with_vocabulary
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Encoder
from regard.tasks import classification, inputs
from regard.tasks.sections import Problems, differing
from regard.tasks.task import Predicts
from regard.text import Tokenizer
from regard.text.templates import EncoderInput
from regard.text.trees import UNESCAPED

# how a text has its spans, and the tokens that the model reads
TOKENS = {"<e1>": "[E1]", "</e1>": "[/E1]", "<e2>": "[E2]", "</e2>": "[/E2]"}
OPENING = ("[E1]", "[E2]")
MARK = re.compile("</?e[12]>")
ONE_SPAN = re.compile(r"(?s)<e[12]><e[12]>.*</e[12]></e[12]>")
NUMBERED = re.compile(r'\d+\t"(.*)"\s*')  # a text of SemEval-2010 task 8
METRICS = ("relation-f1", "relation-micro-f1", "accuracy")
Item = str | tuple[Any, ...] | Mapping[str, Any]  # a text with its spans
EXAMPLE = "<e1>Rain</e1> caused the <e2>flood</e2>"


def _semeval(path: str) -> Numbered:
    """The examples of SemEval-2010 task 8: a text in quotes, then the line of its relation."""
    text, begun = "", 0
    for number, line in enumerate(lines(path), 1):
        if quoted := NUMBERED.fullmatch(line):
            text, begun = quoted[1], number
        elif text and line.strip():
            yield begun, {"text": text, "label": line.strip()}
            text = ""


def _examples(source: Any) -> RowReader | None:
    """The examples of a file of SemEval (.txt), or of a table with TACRED's columns; None: it is
    another source.
    """
    path = str(source) if is_path(source) else ""
    if ending(path) == ".txt":
        return RowReader(path, partial(_semeval, path))
    columns = {name: name for name in TACRED} | {"label": "relation"}
    return open_table(source, columns) if {*TACRED} <= {*inputs.names_in(source)} else None


class RelationData(classification.LabelledData):
    """[data]: tables of a text, the spans [start, end] of its head and its tail in characters, and
    the relation; or a text with <e1></e1> and <e2></e2> around them, and the relation; or the
    files of SemEval-2010 task 8 (.txt); or rows as TACRED has them (.json, .jsonl).
    """

    input_names = ("text", "head", "tail")

    @property
    def pairs(self) -> None:
        """Spans are no second text."""

    def read(self, source: Any, part: str) -> RowReader:
        """The rows of a table, or the examples of a file."""
        return _examples(source) or super().read(source, part)

    def texts(self) -> Iterator[str]:
        """The training texts without their markers, from which a tokenizer learns."""
        rows = self.records("train")
        return (MARK.sub("", row.get("text") or " ".join(row["token"])) for row in rows)


class RelationRecipe(classification.OneTargetRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: RelationData
    objective: classification.ClassificationObjective = classification.ClassificationObjective()


def relation_head(encoder: Encoder, outputs: int) -> nn.Module:
    """A new head over the states of both opening markers."""
    head = ClassificationHead(2 * encoder.config.d_model, outputs, pooling=every_token, dropout=0.1)
    return init_weights(head, HEAD_INIT)


@dataclass(frozen=True)
class MarkedFormat(InputFormat):
    """Texts whose markers are tokens; a text that is too long is read in a window around them."""

    def encode(self, texts: Sequence[Texts]) -> list[EncoderInput]:
        """The inputs of texts.

        Raises:
            TextError: head and tail are further apart than the model reads.
        """
        spaced = [re.sub(r"(\s+)(<e[12]>)", r"\2\1", text) for (text,) in texts]
        split = [part for text in spaced for part in MARK.split(text)]
        parts, encoded = iter(self.tokenizer.encode_many(split)), []
        for index, text in enumerate(spaced):
            ids = next(parts)
            for mark in MARK.findall(text):
                ids = [*ids, self.tokenizer.id(TOKENS[mark]), *next(parts)]
            (first, last), item = self._span(ids), self.template.apply([ids])
            room = (self.max_length or len(item)) - len(item) + len(ids)
            if last - first > room:
                problem = f"has its spans {last - first} tokens apart; the model reads {room}."
                raise TextError(index, problem, "Shorten the text between them.")
            encoded.append(item)
        return encoded

    def truncate(self, item: EncoderInput) -> EncoderInput:
        """The part of the text with both spans in its middle."""
        if self.max_length is None or len(item) <= self.max_length:
            return item
        (ids,) = item.texts()
        room = self.max_length - len(item) + len(ids)
        first, last = self._span(ids)
        start = max(0, min(first - (room - last + first) // 2, len(ids) - room))
        return self.template.apply([ids[start : start + room]])

    def _span(self, ids: Sequence[int]) -> tuple[int, int]:
        """The positions of the first marker and behind the last one; of none the first token."""
        markers = {self.tokenizer.id(token) for token in TOKENS.values()}
        at = [position for position, token in enumerate(ids) if token in markers] or [0]
        return at[0], at[-1] + 1


class RelationExtraction(classification.TextClassifier):
    """The relation between two spans of a text.

    A text has <e1></e1> around the first span, the head, and <e2></e2> around the second, the tail;
    or it is a tuple of the text and both spans, or a mapping with `text`, `head` and `tail`.
    """

    name = "relation-extraction"
    head = "relation"
    new_head = staticmethod(relation_head)
    file_ending = "jsonl"
    input_columns = MappingProxyType({"text": str, "head": list, "tail": list})
    predict: Predicts[Item, str, classification.LabelPrediction]
    example_input = EXAMPLE
    format_type = MarkedFormat
    scoring = classification.TextMetrics(name, METRICS, METRICS)
    Recipe = RelationRecipe

    @classmethod
    def prepared(cls, model: EncoderWithHeads, tokenizer: Tokenizer) -> tuple[Any, Tokenizer]:
        """The tokenizer with tokens for the markers, and the model with embeddings for them."""
        tokenizer = tokenizer.with_special_tokens([*TOKENS.values()])
        return with_vocabulary(model, tokenizer.vocab_size), tokenizer

    @classmethod
    def problems(cls, recipe: Any) -> Problems:
        """Options without effect, or without what they need."""
        yield from super().problems(recipe)
        yield from differing(recipe.objective, "objective", ("both_orders",), "is of two texts")
        if dict(recipe.model).get("lora") is not None:
            yield "model.lora", "would freeze the new tokens of the markers. Leave it out."

    def rows_to_evaluate(
        self, files: Sequence[Any], columns: Sequence[int | str] = (), delimiter: str | None = None
    ) -> Any:
        """The rows of a table, or the examples of a file."""
        return _examples(files[0]) or super().rows_to_evaluate(files, columns, delimiter)

    def read(self, texts: Sequences) -> Tensor:
        """What the head reads of a batch."""
        return self.pooled(self.encoder.encode(texts), texts)

    def pooled(self, hidden: Tensor, texts: Sequences) -> Tensor:
        """The states at both opening markers, end to end: (B, T, D) or (1, N, D) -> (B, 2 D)."""
        ids = torch.tensor([[self.tokenizer.id(token)] for token in OPENING], device=hidden.device)
        at = (texts.pad(texts.ids)[:, None] == ids).int().argmax(-1)  # (B, 2)
        states = texts.pad(hidden).gather(1, at[..., None].expand(-1, -1, hidden.size(-1)))
        return states.flatten(1)  # (B, 2, D) -> (B, 2 D)

    def checked(self, texts: Any) -> list[Any]:
        """Texts with <e1></e1> and <e2></e2> around their spans.

        Raises:
            TextError: an item has no markers, or a span is not inside its text.
        """
        return [(_marked(item, index),) for index, item in enumerate(inputs.as_list(texts))]


def _in_characters(tokens: Any, bounds: Sequence[Any], index: int) -> list[Any]:
    """The text of tokens, and its spans in characters from those in tokens: the first and the last
    token of the head, then those of the tail.
    """
    words = [UNESCAPED.get(word, word) for word in inputs.as_strings(tokens) or ()]
    starts = [*accumulate((len(word) + 1 for word in words), initial=0)]
    pairs = bounds[:2], bounds[2:]
    try:
        spans = [(starts[int(first)], starts[int(last) + 1] - 1) for first, last in pairs]
    except (IndexError, TypeError, ValueError):
        problem = f"has the spans {pairs}, which are not first and last of {len(words)} tokens."
        raise TextError(index, problem) from None
    return [" ".join(words), *spans]


def _marked(item: Any, index: int) -> str:
    of_words = isinstance(item, Mapping) and "token" in item
    names = TACRED if of_words else RelationExtraction.input_columns
    first, *spans = inputs.fields_in(item, names, index)
    if len(spans) == 4:
        first, *spans = _in_characters(first, spans, index)
    elif quoted := NUMBERED.fullmatch("\t".join(map(str, [first, *spans]))):
        first, spans = quoted[1], []
    text = inputs.checked_text(first, index)
    places = []
    for span, number in zip(spans, "12", strict=False):
        bounds = [int(digits) for digits in re.findall(r"-?\d+", str(span))]
        if len(bounds) != 2 or not 0 <= bounds[0] < bounds[1] <= len(text):
            problem = f"has the span {span!r}, which is not [start, end] in {len(text)} characters."
            raise TextError(index, problem)
        places += [(bounds[0], 1, f"<e{number}>"), (bounds[1], 0, f"</e{number}>")]
    for position, _, mark in sorted(places, reverse=True):
        text = text[:position] + mark + text[position:]
    at = [text.find(mark) for mark in TOKENS]
    ordered = at[0] < at[1] and at[2] < at[3] and len(spans) < 3 and not ONE_SPAN.search(text)
    if sorted(MARK.findall(text)) != sorted(TOKENS) or not ordered:
        problem = "must have one <e1></e1> and one <e2></e2>, around two different spans."
        raise TextError(index, problem, f"Write {EXAMPLE!r}, or give text, head and tail.")
    return text
