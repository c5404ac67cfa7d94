"""The special tokens around one text or two: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].

A template holds the ids before, between and after the texts, and the segment of every position.
tokenizer.json has it as its post-processor, where other libraries read it, too; if a file has none,
the model has a template of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

Special = tuple[int, int]  # the id of a special token, and its segment
Specials = tuple[Special, ...]


@dataclass(slots=True)
class EncoderInput:
    """One or two texts with the special tokens around them, as an encoder reads them.

    ids, segments: of every position
    starts, counts: of each text, the position of its first token, and how many tokens it has
    """

    ids: list[int]
    segments: list[int]
    starts: tuple[int, ...]
    counts: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def texts(self) -> list[list[int]]:
        """The ids of each text, without special tokens."""
        spans = zip(self.starts, self.counts, strict=True)
        return [self.ids[start : start + count] for start, count in spans]


@dataclass(frozen=True)
class Template:
    """The special tokens before, between and after texts, and the segments of the texts.

    single: those before and after one text
    pair: those before, between and after two texts
    segments: of one text; of the first of two; of the second of two
    """

    single: tuple[Specials, Specials]
    pair: tuple[Specials, Specials, Specials]
    segments: tuple[int, int, int] = (0, 0, 1)

    @property
    def segment_count(self) -> int:
        """The number of different segments."""
        special = [segment for part in (*self.single, *self.pair) for _, segment in part]
        return 1 + max([*self.segments, *special])

    def unsegmented(self) -> Template:
        """The same special tokens; all positions are of the first segment."""
        single, pair = (
            tuple(tuple((i, 0) for i, _ in part) for part in parts)
            for parts in (self.single, self.pair)
        )
        return Template((single[0], single[1]), (pair[0], pair[1], pair[2]), (0, 0, 0))

    def special_count(self, texts: int) -> int:
        """The number of special tokens around one text, or two."""
        return sum(map(len, self.single if texts == 1 else self.pair))

    def apply(self, texts: Sequence[Sequence[int]]) -> EncoderInput:
        """The encoder input of one text, given as ids, or of two."""
        (first_ids, first_segments), *after = self._around[len(texts)]
        of_text = self.segments[:1] if len(texts) == 1 else self.segments[1:]
        ids, segments, starts = [*first_ids], [*first_segments], []
        for text, segment, (after_ids, after_segments) in zip(texts, of_text, after, strict=True):
            starts.append(len(ids))
            ids += text
            ids += after_ids
            segments += [segment] * len(text)
            segments += after_segments
        return EncoderInput(ids, segments, tuple(starts), tuple(map(len, texts)))

    @cached_property
    def _around(self) -> dict[int, list[tuple[list[int], list[int]]]]:
        """By the number of texts: the ids and the segments of each part around them."""
        return {
            len(parts) - 1: [([i for i, _ in part], [s for _, s in part]) for part in parts]
            for parts in (self.single, self.pair)
        }

    @classmethod
    def around(
        cls, before: Sequence[int], between: Sequence[int], after: Sequence[int]
    ) -> Template:
        """Of ids before, between and after texts; all are of the first segment (RoBERTa, GPT)."""
        first, middle, last = (tuple((i, 0) for i in part) for part in (before, between, after))
        return cls((first, last), (first, middle, last), (0, 0, 0))

    @classmethod
    def lines(cls, eos: int | None, bos: int | None) -> Template:
        """eos A eos, and eos A eos B eos: as lines stand in the text of a language model. Where
        there is no eos, bos A and bos A bos B.
        """
        ends = () if eos is None else (eos,)
        begins = ends or (() if bos is None else (bos,))
        return cls.around(begins, begins, ends)

    @classmethod
    def roberta(cls, begin: int, end: int) -> Template:
        """<s> A </s>, <s> A </s></s> B </s>; all are of the first segment."""
        return cls.around((begin,), (end, end), (end,))

    @classmethod
    def bert(cls, begin: int, end: int) -> Template:
        """[CLS] A [SEP], [CLS] A [SEP] B [SEP]; B and the [SEP] after it are the second segment."""
        first, middle, last = ((begin, 0),), ((end, 0),), ((end, 1),)
        return cls((first, middle), (first, middle, last))


@dataclass(frozen=True)
class Encoding:
    """A text as tokens.

    offsets: the (start, end) of each token in characters of the text: `text[start:end]` is its text
        before lower-casing and the like. Several byte-level tokens of one character all have the
        offsets of that character; the space before a byte-level token is part of it.
    """

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.ids)
