"""Texts as vectors: what every task on an encoder can do beside its own.

task.embed(texts)                                        (N, D), a vector a text
task.embed(texts, layers="concat-last-4", per="word")    for each text its words' vectors
for vector in task.embed_stream(lines): ...              as many texts as there are, flat memory

Texts pass in chunks, sorted by length inside, in small batches: a batch whose states fit into the
caches of a CPU is three times as fast as one that does not. While one chunk is computed, the next
is cut into pieces in another thread.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.checkpoints.sentence_transformers import KINDS, Pooling
from regard.data.encoder_inputs import EncodedInputs, InputFormat
from regard.decoding.steps import evaluating
from regard.errors import ConfigError, TextError
from regard.layers.mixing import Choice, choice_of
from regard.suggest import nearest
from regard.tasks.batching import TooLong, device_of
from regard.tasks.finite import check_finite
from regard.tasks.inputs import as_list, checked_text, iterate, text_or_words
from regard.tasks.verbs import TaskVerbs
from regard.text.templates import EncoderInput
from regard.text.word_spans import words_of

Per = Literal["text", "word", "token"]
Precision = Literal["float32", "bfloat16"]
ELSEWHERE = 65536  # and on other devices
OTHER_NAMES = {"first": "cls", "last": "lasttoken"}


class Vectors(np.ndarray):
    """An array (n, D) that knows of which words or pieces its rows are: `labels`, n of them."""

    labels: tuple[str, ...]

    @classmethod
    def of(cls, values: np.ndarray, labels: Sequence[str]) -> Self:
        """The rows of `values` with their labels."""
        made = values.view(cls)
        made.labels = tuple(labels)
        return made

    def __array_finalize__(self, made_from: Any) -> None:
        self.labels = ()  # rows taken out of it, or computed from it, are no longer those


@dataclass(frozen=True)
class Reader:
    """An encoder, what makes rows of texts for it, and how the vector of a text is pooled."""

    encoder: Any
    pieces: InputFormat
    pooling: Pooling = Pooling()


class Embeds(TaskVerbs):
    """The verbs of a task that has an encoder."""

    @abstractmethod
    def reader(self) -> Reader:
        """The encoder and what belongs to it.

        Raises:
            ConfigError: the model of this task is none.
        """

    def embed(
        self,
        texts: Any,
        *,
        layers: str | int | Choice = "last",
        pooling: str | None = None,
        per: Per = "text",
        normalize: bool | None = None,
        too_long: TooLong = "error",
        precision: Precision = "float32",
        max_tokens_per_batch: int | None = None,
    ) -> Any:
        """Vectors of texts in float32 (a list of texts, or one).

        Args:
            texts: strings; with per="word" also lists of words. The words of a string are those of
                `regard.text.word_spans`.
            layers: "first" (the embeddings), "last", "second-to-last", "sum" (of all layers above
                the embeddings), "sum-last-4", "concat-last-4", the number of a layer (0: the
                embeddings), "mix:…" with the scalars of a mix, or a `ScalarMix` that has learned.
            pooling: of a text's tokens, [CLS] and [SEP] among them, or of a word's pieces: "mean",
                "first", "last", "max"; of a text also the others that
                `regard.checkpoints.sentence_transformers` knows.
                None: of a text as the model's folder says, else the mean.
            per: what a vector is of. A token is a piece, the special ones included.
            normalize: whether vectors get the length 1. None: of a text as the folder says.
            too_long: what happens to texts longer than the model reads.
            precision: "bfloat16" for the matrix products; vectors are float32 all the same.
            max_tokens_per_batch: places in a batch, padding included.

        Returns:
            (N, D) for texts; for words and tokens a list of `Vectors`, (words, D) or (tokens, D).

        Raises:
            ConfigError: the model has no such layers, there is no such pooling.
            RegardError: a text is longer than the model reads and `too_long` is "error".
        """
        embedder = Embedder.of(
            self.reader(),
            layers=layers,
            pooling=pooling,
            per=per,
            normalize=normalize,
            precision=precision,
            max_tokens_per_batch=max_tokens_per_batch,
        )
        one = isinstance(texts, str)
        found = list(embedder.chunks([texts] if one else as_list(texts), too_long))
        if one:
            return found[0][0]
        if per != "text":
            return list(chain.from_iterable(found))
        return np.concatenate(found) if found else np.zeros((0, embedder.width), np.float32)

    def embed_stream(
        self, texts: Iterable[Any], *, too_long: TooLong = "error", **options: Any
    ) -> Iterator[np.ndarray]:
        """The vectors of any number of texts, in order, while memory stays flat.

        Args:
            options: as of `embed`.
        """
        return Embedder.of(self.reader(), **options).stream(iterate(texts), too_long)

    def similarity(self, a: Any, b: Any, **options: Any) -> Any:
        """The cosine of texts: a number for two, (len(a), len(b)) for lists.

        Args:
            options: as of `embed`.
        """
        sides = [[side] if isinstance(side, str) else as_list(side) for side in (a, b)]
        first, second = (self.embed(side, **options | {"normalize": True}) for side in sides)
        cosines = first @ second.T
        return float(cosines[0, 0]) if isinstance(a, str) and isinstance(b, str) else cosines


# ------------------------------------------------------------------------------- what a vector is


@dataclass(frozen=True)
class Read:
    """Rows of texts; of each its words (`labels`), and how many pieces those have (`sizes`)."""

    rows: list[EncoderInput]
    labels: Sequence[Sequence[str]] = ()
    sizes: Sequence[Sequence[int]] = ()


class Unit(Protocol):
    """What a vector is of."""

    chunk: int  # texts that are sorted and computed together

    def read(self, pieces: InputFormat, texts: Sequence[Any]) -> Read:
        """The rows of texts.

        Raises:
            TextError: one is no text.
        """
        ...

    def shortened(self, read: Read, pieces: InputFormat) -> Read:
        """Within the limit."""
        ...

    def vectors(self, states: Tensor, sizes: Tensor, read: Read) -> Sequence[Tensor] | Tensor:
        """Of each row of a batch its vector, or its vectors.

        states: (N, D), of the tokens of all rows, end to end.  sizes: (B,), how many each has.
        """
        ...


@dataclass(frozen=True)
class Text:
    """A vector a text."""

    pooling: Pooling
    chunk = 1024

    def read(self, pieces: InputFormat, texts: Sequence[Any]) -> Read:
        return Read(pieces.encode([(as_text(text, i),) for i, text in enumerate(texts)]))

    def shortened(self, read: Read, pieces: InputFormat) -> Read:
        return Read([pieces.truncate(row) for row in read.rows])

    def vectors(self, states: Tensor, sizes: Tensor, read: Read) -> Tensor:
        return self.pooling.of(states, sizes)


@dataclass(frozen=True)
class Token:
    """A vector a piece."""

    normalize: bool
    chunk = 128

    def read(self, pieces: InputFormat, texts: Sequence[Any]) -> Read:
        rows = pieces.encode([(as_text(text, i),) for i, text in enumerate(texts)])
        return Read(rows, [list(map(pieces.tokenizer.token, row.ids)) for row in rows])

    def shortened(self, read: Read, pieces: InputFormat) -> Read:
        rows, piece = [pieces.truncate(row) for row in read.rows], pieces.tokenizer.token
        return Read(rows, [list(map(piece, row.ids)) for row in rows])

    def vectors(self, states: Tensor, sizes: Tensor, read: Read) -> Sequence[Tensor]:
        if self.normalize:
            states = F.normalize(states, dim=-1)
        return states.split(sizes.tolist())


# From the pieces of words, (P, D), and how many each word has, (W,), to (W, D).
WORD_POOLINGS = {
    name: KINDS[OTHER_NAMES.get(name, name)] for name in ("mean", "first", "last", "max")
}


@dataclass(frozen=True)
class Word:
    """A vector a word."""

    pooling: str
    normalize: bool
    chunk = 128

    def read(self, pieces: InputFormat, texts: Sequence[Any]) -> Read:
        words = [as_words(text, i) for i, text in enumerate(texts)]
        found = pieces.encode_words(words)
        rows = [_row(list(chain.from_iterable(word)), pieces) for word in found]
        return Read(rows, words, [list(map(len, word)) for word in found])

    def shortened(self, read: Read, pieces: InputFormat) -> Read:
        kept = [_words_within(*both, pieces) for both in zip(read.rows, read.sizes, strict=True)]
        parts = zip(read.rows, read.sizes, kept, strict=True)
        rows = [
            row if n == len(sizes) else _row(_text_of(row)[: sum(sizes[:n])], pieces)
            for row, sizes, n in parts
        ]
        labels = [words[:n] for words, n in zip(read.labels, kept, strict=True)]
        return Read(rows, labels, [sizes[:n] for sizes, n in zip(read.sizes, kept, strict=True)])

    def vectors(self, states: Tensor, sizes: Tensor, read: Read) -> Sequence[Tensor]:
        texts = zip(states.split(sizes.tolist()), read.rows, read.sizes, strict=True)
        pieces = torch.cat(
            [of_row[row.starts[0] :][: sum(of_words)] for of_row, row, of_words in texts]
        )  # (P, D): those of the words, without the template's
        words = torch.tensor(list(chain.from_iterable(read.sizes)), device=states.device)
        found = WORD_POOLINGS[self.pooling](pieces, words) if len(words) else pieces
        if self.normalize:
            found = F.normalize(found, dim=-1)
        return found.split([len(of_row) for of_row in read.sizes])


def as_words(given: Any, place: int) -> list[str]:
    """The words of a running text, as tasks on words see them; or words as a user gives them."""
    text = text_or_words(given, place)
    if isinstance(text, str):
        return [text[start:stop] for start, stop in words_of(text)]
    return text


def _row(ids: list[int], pieces: InputFormat) -> EncoderInput:
    """Around the pieces of words what the template has; never a row of nothing."""
    row = pieces.template.apply([ids])
    return row if row.ids else pieces.encode([("",)])[0]


def _text_of(row: EncoderInput) -> list[int]:
    return row.ids[row.starts[0] :][: row.counts[0]]


def _words_within(row: EncoderInput, sizes: Sequence[int], pieces: InputFormat) -> int:
    """How many whole words of a row the model reads."""
    if pieces.max_length is None or len(row) <= pieces.max_length:
        return len(sizes)
    room = pieces.max_length - pieces.template.special_count(1)
    return sum(end <= room for end in accumulate(sizes))


def unit_of(
    per: Per, pooling: str | None, normalize: bool | None, of_folder: Pooling
) -> Text | Word | Token:
    """What a vector is of, and how it is pooled.

    Raises:
        ConfigError: there is no such unit or pooling.
    """
    if per == "text":
        found = replace(of_folder, kinds=(_kind(pooling),)) if pooling else of_folder
        return Text(found if normalize is None else replace(found, normalize=normalize))
    if per == "token":
        if pooling is not None:
            raise ConfigError("A token has one vector: there is nothing that `pooling` could pool.")
        return Token(bool(normalize))
    if per != "word":
        known = nearest(str(per), ("text", "word", "token"))
        raise ConfigError(f"`per` cannot be {per!r}. {known}")
    if pooling is not None and pooling not in WORD_POOLINGS:
        known = nearest(pooling, WORD_POOLINGS)
        raise ConfigError(f"Pieces of a word have no pooling {pooling!r}. {known}")
    return Word(pooling or "mean", bool(normalize))


def _kind(pooling: str) -> str:
    kind = OTHER_NAMES.get(pooling, pooling)
    if kind not in KINDS:
        raise ConfigError(
            f"There is no pooling {pooling!r}. {nearest(pooling, [*OTHER_NAMES, *KINDS])}"
        )
    return kind


# -------------------------------------------------------------------------------------- computing


@dataclass(frozen=True)
class Embedder:
    """From texts to vectors, in one way that is settled."""

    encoder: Any
    pieces: InputFormat
    choice: Choice
    unit: Text | Word | Token
    precision: Precision
    places: int

    @classmethod
    def of(
        cls,
        reader: Reader,
        *,
        layers: str | int | Choice = "last",
        pooling: str | None = None,
        per: Per = "text",
        normalize: bool | None = None,
        precision: Precision = "float32",
        max_tokens_per_batch: int | None = None,
    ) -> Self:
        """See `Embeds.embed`."""
        if precision not in ("float32", "bfloat16"):
            raise ConfigError(f"`precision` must be float32 or bfloat16, but is {precision!r}.")
        return cls(
            reader.encoder,
            reader.pieces,
            choice_of(layers),
            unit_of(per, pooling, normalize, reader.pooling),
            precision,
            max_tokens_per_batch or places_of(reader.encoder),
        )

    @property
    def width(self) -> int:
        """Of a vector, D."""
        one = self.choice.width(self.encoder.config.d_model)
        return one * len(self.unit.pooling.kinds) if isinstance(self.unit, Text) else one

    def stream(self, texts: Iterable[Any], too_long: TooLong) -> Iterator[np.ndarray]:
        """The vectors of each text in order; see `chunks`."""
        return chain.from_iterable(self.chunks(texts, too_long))

    def chunks(
        self, texts: Iterable[Any], too_long: TooLong
    ) -> Iterator[np.ndarray | list[np.ndarray]]:
        """The vectors of texts in order, some texts at a time: (n, D), or a list of `Vectors`.

        A warning at the end tells how many texts were cut.

        Raises:
            RegardError: a text is longer than the model reads and `too_long` is "error".
        """
        done = cut = 0
        for read, long in self.reads(texts):
            if long and too_long == "error":
                raise longer_than_read(read.rows[long[0]], done + long[0], self.pieces)
            yield self.vectors(read, done)
            done, cut = done + len(read.rows), cut + len(long)
        if cut:
            warnings.warn(
                f"{cut:,} of {done:,} texts were cut to {self.pieces.max_length:,} tokens, which "
                "is what this model reads",
                stacklevel=3,
            )

    def reads(self, texts: Iterable[Any]) -> Iterator[tuple[Read, list[int]]]:
        """Texts in chunks as the model reads them, whole, and which of a chunk are too long.

        The next chunk is read in another thread while the caller is busy with this one.
        """
        texts, done = iter(texts), 0
        waiting: Future[Read] | None = None
        with ThreadPoolExecutor(1) as thread:
            while True:
                chunk = list(islice(texts, self.unit.chunk))
                coming = thread.submit(self.read, chunk, done) if chunk else None
                done += len(chunk)
                if waiting is not None:
                    read = waiting.result()
                    yield read, self.pieces.too_long(read.rows)
                if coming is None:
                    return
                waiting = coming

    def read(self, texts: Sequence[Any], before: int = 0) -> Read:
        """The rows of texts that are held together, whole; `before` others came first.

        Raises:
            TextError: one is no text.
        """
        try:
            return self.unit.read(self.pieces, texts)
        except TextError as error:
            raise error.moved(before) from None

    def vectors(self, read: Read, before: int = 0) -> np.ndarray | list[np.ndarray]:
        """The vectors of each text; those beyond the limit lose their ends.

        Raises:
            TextError: vectors of a text are infinite or not numbers; `before` others came first.
        """
        if self.pieces.too_long(read.rows):
            read = self.unit.shortened(read, self.pieces)
        if isinstance(self.unit, Text):
            vectors = np.empty((len(read.rows), self.width), np.float32)
            for numbers, found in self._computed(read):
                vectors[numbers] = found.cpu().numpy()
            good = torch.from_numpy(np.isfinite(vectors).all(1))
            check_finite(good, range(before, before + len(vectors)), "vectors")
            return vectors
        each = [np.empty(0, np.float32)] * len(read.rows)
        for numbers, found in self._computed(read):
            for number, of_text in zip(numbers, found, strict=True):
                each[number] = of_text.cpu().numpy()
        good = torch.tensor([bool(np.isfinite(of_text).all()) for of_text in each])
        check_finite(good, range(before, before + len(each)), "vectors")
        return [Vectors.of(*both) for both in zip(each, read.labels, strict=True)]

    def _computed(self, read: Read) -> Iterator[tuple[list[int], Any]]:
        """Batch by batch the numbers of the texts, and what the unit makes of each."""
        device = device_of(self.encoder)
        bfloat16 = self.precision == "bfloat16"
        batches = EncodedInputs.of(read.rows).in_order(self.pieces.pad, tokens=self.places)
        casting = torch.autocast(device.type, torch.bfloat16, enabled=bfloat16)
        with torch.no_grad(), evaluating(self.encoder), casting:
            for batch in batches:
                numbers, texts = batch.numbers.tolist(), batch.texts.to(device)
                states = self.encoder.chosen(texts, self.choice).float()
                sizes = [read.sizes[i] for i in numbers] if read.sizes else ()
                here = Read([read.rows[i] for i in numbers], sizes=sizes)
                yield numbers, self.unit.vectors(states, texts.lengths, here)


def places_of(encoder: Any) -> int:
    """How many places, padding included, pass an encoder at once where nothing is learned."""
    on_cpu = device_of(encoder).type == "cpu"
    return encoder.places if on_cpu else ELSEWHERE


def as_text(given: Any, place: int) -> str:
    """A text as a user gives it."""
    return checked_text(given, place, f"Give texts as strings, but this is {given!r:.80}.")


def longer_than_read(row: EncoderInput, number: int, pieces: InputFormat) -> TextError:
    """For a text beyond the model's limit; its number is counted from 0."""
    problem = f"has {len(row)} tokens, but this model reads at most {pieces.max_length}."
    return TextError(number, problem, "Shorten it, or cut its end with too_long='truncate'.")
