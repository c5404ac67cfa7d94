"""How one text, or two, become a row for an encoder: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].

A template holds the ids that stand around the texts, and the segment of every place. It is kept in
tokenizer.json (its post-processor), where other libraries find it too; where a file has none, the
model knows its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers.models import WordLevel
from tokenizers.processors import ByteLevel, PostProcessor, TemplateProcessing
from tokenizers.processors import Sequence as Processors

from regard.errors import RegardError
from regard.text.tokenizers_calls import call

Special = tuple[int, int]  # the id of a piece, and its segment
Specials = tuple[Special, ...]


@dataclass(frozen=True)
class EncoderInput:
    """One or two texts as an encoder reads them.

    `starts` and `counts` say where the ids of each text stand in the row, and how many are left.
    """

    ids: list[int]
    segments: list[int]
    starts: tuple[int, ...]
    counts: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def texts(self) -> list[list[int]]:
        """The ids of each text, without what stands around them."""
        places = zip(self.starts, self.counts, strict=True)
        return [self.ids[start : start + count] for start, count in places]


@dataclass(frozen=True)
class Template:
    """What stands before, between and after the texts, and the segments of the texts themselves.

    single: before and after one text.  pair: before, between and after two.
    segments: of one text; of the first of two; of the second of two.
    """

    single: tuple[Specials, Specials]
    pair: tuple[Specials, Specials, Specials]
    segments: tuple[int, int, int] = (0, 0, 1)

    @property
    def segment_count(self) -> int:
        """How many segments are told apart."""
        marks = [segment for part in (*self.single, *self.pair) for _, segment in part]
        return 1 + max([*self.segments, *marks])

    def unsegmented(self) -> Template:
        """The same pieces, all of the first segment."""
        single, pair = (
            tuple(tuple((i, 0) for i, _ in part) for part in parts)
            for parts in (self.single, self.pair)
        )
        return Template((single[0], single[1]), (pair[0], pair[1], pair[2]), (0, 0, 0))

    def special_count(self, texts: int) -> int:
        """The places that are not of a text in a row of one text or of two."""
        return sum(map(len, self.single if texts == 1 else self.pair))

    def apply(self, texts: Sequence[Sequence[int]]) -> EncoderInput:
        """The row of one text's ids, or of two."""
        around = self.single if len(texts) == 1 else self.pair
        of_text = self.segments[:1] if len(texts) == 1 else self.segments[1:]
        ids, segments, starts = [i for i, _ in around[0]], [s for _, s in around[0]], []
        for text, segment, after in zip(texts, of_text, around[1:], strict=True):
            starts.append(len(ids))
            ids += text
            ids += [i for i, _ in after]
            segments += [segment] * len(text)
            segments += [s for _, s in after]
        return EncoderInput(ids, segments, tuple(starts), tuple(map(len, texts)))

    @classmethod
    def around(
        cls, before: Sequence[int], between: Sequence[int], after: Sequence[int]
    ) -> Template:
        """All places of the first segment (RoBERTa, GPT)."""
        first, middle, last = (tuple((i, 0) for i in part) for part in (before, between, after))
        return cls((first, last), (first, middle, last), (0, 0, 0))

    @classmethod
    def bert(cls, begin: int, end: int) -> Template:
        """[CLS] A [SEP], [CLS] A [SEP] B [SEP]; B and what follows are the second segment."""
        first, middle, last = ((begin, 0),), ((end, 0),), ((end, 1),)
        return cls((first, middle), (first, middle, last))


def template_in(processor: PostProcessor | None) -> Template | None:
    """The template of a post-processor, as it is seen in what it does to texts of one token each.

    Raises:
        RegardError: it puts no template around the texts, but does something else.
    """
    if processor is None or isinstance(processor, ByteLevel):
        return None  # bytes only trim the places of pieces
    text = tokenizers.Tokenizer(WordLevel({"x": 0}, unk_token="x")).encode("x")

    def problem(said: str) -> RegardError:
        return RegardError(f"its `post_processor` cannot be used: {said}.")

    single, pair = call(
        lambda: (_parts(processor.process(text)), _parts(processor.process(text, text))), problem
    )
    if (len(single), len(pair)) != (3, 5):
        raise problem("it must put one text, or two, between special tokens, each text once")
    (before, own, after), (start, first, between, second, end) = single, pair
    return Template((before, after), (start, between, end), (own[0][1], first[0][1], second[0][1]))


def processor_of(
    template: Template, token: Callable[[int], str], before: PostProcessor | None = None
) -> PostProcessor:
    """The post-processor by which other libraries put texts into a template.

    token: the piece with an id.
    before: the one that it takes the place of; its handling of bytes stays.
    """
    one, first, second = template.segments
    used = {i for part in (*template.single, *template.pair) for i, _ in part}
    names = {i: _named(token(i), i) for i in sorted(used)}
    around: PostProcessor = TemplateProcessing(
        single=_spelled(names, template.single, (f"$A:{one}",)),
        pair=_spelled(names, template.pair, (f"$A:{first}", f"$B:{second}")),
        special_tokens=[
            {"id": name, "ids": [i], "tokens": [token(i)]} for i, name in names.items()
        ],
    )
    return Processors([before, around]) if isinstance(before, ByteLevel) else around


def _parts(encoding: tokenizers.Encoding) -> list[Specials]:
    """The special tokens before, between and after the texts, and the texts' own tokens."""
    parts: list[list[Special]] = [[]]
    marks = zip(encoding.ids, encoding.type_ids, encoding.special_tokens_mask, strict=True)
    for number, segment, special in marks:
        if special:
            parts[-1].append((number, segment))
        else:
            parts += [[(number, segment)], []]
    return [tuple(part) for part in parts]


def _spelled(
    names: Mapping[int, str], around: Sequence[Specials], texts: Sequence[str]
) -> list[str]:
    spelled = [[f"{names[i]}:{segment}" for i, segment in part] for part in around]
    for part, text in zip(spelled[:-1], texts, strict=True):
        part.append(text)
    return [piece for part in spelled for piece in part]


def _named(piece: str, number: int) -> str:
    """The name of a piece inside a template: its own, unless that would mean something there."""
    return f"special-{number}" if ":" in piece or piece.startswith("$") else piece
