"""A corpus: the tokens of documents, with where documents, paragraphs and sentences begin.

It is in memory (`encode_corpus`), or a folder of files that are mapped into memory
(`regard.data.corpus_folder`), which may be larger than it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from regard.data.documents import DocumentPassage, Documents
from regard.data.token_arrays import TextTokenizer, TokenArray, ahead, chunks_of
from regard.errors import ConfigError, DataError, RegardError
from regard.text.sentences import begin_at_space, divided_ids, sentence_starts

DOCUMENT, PARAGRAPH, SENTENCE, INSIDE = 3, 2, 1, 0  # what begins with a unit of text


@dataclass(frozen=True, eq=False)
class MappedTokens(TokenArray):
    """A `TokenArray` in mapped files.

    ids_crc: the CRC-32 of all ids, so that they need not be read for the checksum.
    """

    ids_crc: int

    @cached_property
    def checksum(self) -> int:
        return zlib.crc32(self.offsets.tobytes(), self.ids_crc)

    def joined(self) -> TokenArray:
        return MappedTokens(self.ids, np.array([0, len(self.ids)]), self.ids_crc)


@dataclass(frozen=True, eq=False)
class Corpus:
    """The tokens of documents.

    tokens: a sequence for each document; all ids end to end, in files or in memory.
    paragraphs, sentences: where each begins in `tokens.ids`, then the number of all ids, (n + 1,)
        int64; None where structure was not asked for. They tile the ids: a document begins a
        paragraph and a paragraph a sentence, and none is without tokens.
    """

    tokens: TokenArray
    paragraphs: np.ndarray | None = None
    sentences: np.ndarray | None = None

    def split(self, share: float) -> tuple[Corpus, Corpus]:
        """The corpus without its last documents, and these: a share of the documents. A single
        document is cut, where a sentence begins if that is known.

        Raises:
            ConfigError: no document, or no token, would be left on one side.
        """
        count = len(self.tokens)
        last = max(1, round(count * share))
        bounds = self.tokens.offsets[[0, max(0, count - last), count]]
        if count == 1:
            bounds[1] = self._cut(share)
        if not 0 < share < 1 or not bounds[0] < bounds[1] < bounds[2]:
            raise ConfigError(
                f"{share:g} of {count:,} documents as validation data leaves nothing to train on. "
                "Give more documents, or another share."
            )
        if count == 1:
            return self._between(bounds[:2]), self._between(bounds[1:])
        return self.part(0, count - last), self.part(count - last, count)

    def _cut(self, share: float) -> int:
        """The first token of the last `share` of the tokens, or the nearest beginning of a sentence
        between the first token and the last.
        """
        count = len(self.tokens.ids)
        at = count - max(1, round(count * share))
        if self.sentences is not None and len(self.sentences) > 2:
            inner = self.sentences[1:-1]
            at = int(inner[np.abs(inner - at).argmin()])
        return at

    def part(self, first: int, last: int) -> Corpus:
        """The documents from number `first` to before `last`."""
        return self._between(self.tokens.offsets[first : last + 1])

    def _between(self, offsets: np.ndarray) -> Corpus:
        """The documents that begin and end at these tokens of the whole corpus."""
        begin, end = int(offsets[0]), int(offsets[-1])
        tokens = TokenArray(self.tokens.ids[begin:end], offsets - begin)
        if self.paragraphs is None or self.sentences is None:
            return Corpus(tokens)

        def inside(starts: np.ndarray) -> np.ndarray:
            low, high = np.searchsorted(starts, [begin + 1, end])
            return np.concatenate([[begin], starts[low:high], [end]]) - begin

        return Corpus(tokens, inside(self.paragraphs), inside(self.sentences))


def encode_corpus(
    documents: Documents,
    tokenizer: TextTokenizer,
    *,
    end: Sequence[int] = (),
    structure: bool = False,
) -> Corpus:
    """A corpus in memory.

    end: ids at the end of each document, such as that of `</s>`
    structure: also store where paragraphs (lines) and sentences begin; sentences are then encoded
        one by one

    Raises:
        DataError: a file cannot be read, or a text cannot be encoded; names file and line.
    """
    encoder = PassageEncoder(tokenizer, end, structure)
    parts = list(encoder.encoded(documents))
    total = sum(len(part.ids) for part in parts)
    ids = np.concatenate([part.ids for part in parts] or [np.empty(0, encoder.dtype)])
    documents_, *rest = (
        np.concatenate([*(part.starts[kind] for part in parts), [total]]).astype(np.int64)
        for kind in encoder.kinds
    )
    return Corpus(TokenArray(ids, documents_), *rest)


class EncodedPassages(NamedTuple):
    """Passages that were encoded together.

    starts: where documents, paragraphs and sentences begin among all ids of the corpus.
    """

    ids: np.ndarray
    starts: tuple[np.ndarray, ...]
    passages: int


@dataclass
class EncoderState:
    """What the encoding of the next passage depends on.

    tokens: the ids before it.  pending: what has begun, but has no token yet.
    """

    tokens: int = 0
    pending: int = INSIDE


@dataclass
class _Units:
    """What is encoded of passages: them, or their sentences.

    texts: one a unit; those of `divided` passages are empty.
    levels: what begins with each unit.  lasts: the numbers of those that end a document.
    divided: the number of a passage's first unit -> its text and where its sentences start; of
        passages whose sentences do not all begin at white space.
    """

    passages: list[DocumentPassage]
    texts: list[str] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    divided: dict[int, tuple[str, list[int]]] = field(default_factory=dict)


class PassageEncoder:
    """Encodes passages, some hundreds at a time, and finds what begins where."""

    def __init__(self, tokenizer: TextTokenizer, end: Sequence[int], structure: bool):
        self.tokenizer, self.end, self.structure = tokenizer, list(end), structure
        self.kinds = range(3) if structure else range(1)
        self.dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<i4")
        self.state = EncoderState()

    def encoded(self, passages: Iterable[DocumentPassage]) -> Iterator[EncodedPassages]:
        """The passages, encoded by a thread while the next ones are read."""
        chunks = map(self._units, chunks_of(iter(passages), lambda passage: len(passage.text)))
        for sequences, levels, count in ahead(self._ids, chunks):
            yield self._located(sequences, levels, count)

    def _units(self, chunk: list[DocumentPassage]) -> _Units:
        units = _Units(chunk)
        texts, levels, lasts = units.texts, units.levels, units.lasts
        for passage in chunk:
            first = DOCUMENT if passage.first else INSIDE
            if not self.structure:
                texts.append(passage.text)
                levels.append(first)
            else:
                starts = sentence_starts(passage.text)
                cuts = [start for start, _ in starts]
                if begin_at_space(passage.text, cuts):
                    texts += map(passage.text.__getitem__, map(slice, cuts, [*cuts[1:], None]))
                else:
                    units.divided[len(texts)] = passage.text, cuts
                    texts += [""] * len(cuts)
                levels += [PARAGRAPH if paragraph else SENTENCE for _, paragraph in starts]
                levels[-len(starts)] = max(first, PARAGRAPH)
            if passage.last:
                lasts.append(len(texts) - 1)
        return units

    def _ids(self, units: _Units) -> tuple[TokenArray, np.ndarray, int]:
        """The ids of each unit, what begins with it, and the number of passages."""
        try:
            encoded = self.tokenizer.encode_many(units.texts)
            for first, (text, cuts) in units.divided.items():
                encoded[first : first + len(cuts)] = divided_ids(self.tokenizer, text, cuts)
        except RegardError as error:
            raise self._located_error(units.passages) or error from None
        if self.end:
            for number in units.lasts:
                encoded[number] = [*encoded[number], *self.end]
        tokens = TokenArray.of(encoded, self.tokenizer.vocab_size)
        return tokens, np.array(units.levels, np.int8), len(units.passages)

    def _located_error(self, chunk: list[DocumentPassage]) -> DataError | None:
        """The error of the first passage that cannot be encoded."""
        for passage in chunk:
            try:
                self.tokenizer.encode_many([passage.text])
            except RegardError as error:
                return DataError(passage.file, passage.line, str(error))
        return None

    def _located(self, units: TokenArray, levels: np.ndarray, count: int) -> EncodedPassages:
        """What begins where, counted from the beginning of the corpus."""
        state = self.state
        begins = state.tokens + units.offsets[:-1]
        starts = [begins[levels == DOCUMENT]]
        if self.structure:
            levels[0] = max(levels[0], state.pending)
            empty = np.flatnonzero(units.lengths == 0)
            for number in empty[empty + 1 < len(levels)]:  # what begins there begins with the next
                levels[number + 1] = max(levels[number], levels[number + 1])
            state.pending = INSIDE if units.lengths[-1] else int(levels[-1])
            filled = units.lengths > 0
            starts += [begins[filled & (levels >= least)] for least in (PARAGRAPH, SENTENCE)]
        state.tokens += len(units.ids)
        return EncodedPassages(units.ids, tuple(starts), count)
