"""Vectors of texts, words and tokens from an encoder.

task.embed(texts)                                        (N, D), a vector per text
task.embed(texts, layers=-2, granularity="word")         for each text the vectors of its words
for vector in task.embed_stream(lines): ...              any number of texts in constant memory

Texts pass in chunks, sorted by length inside, in small batches: a batch whose states fit into the
caches of a CPU is three times as fast as one that does not. While one chunk is computed, the next
is tokenized in another thread.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, islice
from typing import Any, Self, Unpack, cast, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard import habit_names
from regard.attention.capture import listening
from regard.call_options import Granularity, Precision
from regard.data.encoder_inputs import EncodedInputs, InputBatch, InputFormat
from regard.decoding.steps import evaluating
from regard.errors import ConfigError, TextError, check_at_least, check_choice
from regard.layers.pooling import KINDS, LayerChoice, Pooling, choice_of
from regard.models.protocols import Encoder, Model
from regard.suggest import check_options
from regard.tasks import batching, inputs
from regard.tasks.task import EmbedOptions, Task
from regard.text.templates import EncoderInput
from regard.text.word_spans import word_spans

ELSEWHERE = 65536  # tokens of a batch, padding included, on devices other than a CPU
ROWS = 4096  # vectors whose products are computed together, in float64
OTHER_NAMES = {"first": "cls", "last": "lasttoken"}


class Vectors(np.ndarray):
    """An array (n, D) with the words or tokens of its rows: `labels`, n of them."""

    labels: tuple[str, ...]

    @classmethod
    def of(cls, values: np.ndarray, labels: Sequence[str]) -> Self:
        """The rows of `values` with their labels."""
        vectors = values.view(cls)
        vectors.labels = tuple(labels)
        return vectors

    def __array_finalize__(self, source: Any) -> None:
        self.labels = ()  # slices and results of arithmetic have other rows


@dataclass(frozen=True)
class TextEncoder:
    """An encoder, how texts become its input, and how the vector of a text is pooled."""

    encoder: Encoder
    input_format: InputFormat
    pooling: Pooling = Pooling()


@dataclass(frozen=True)
class TextMatch:
    """A text that was found: its index among those searched, its cosine, and the text."""

    index: int
    score: float
    text: str


def products(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The products of vectors, (A, D) and (B, D) -> (A, B) float32.

    They are computed in float64, and rounded: equal vectors have equal products, wherever they
    stand. In float32 BLAS may add up the last rows in another order.
    """
    left = first.astype(np.float64)
    starts = range(0, max(1, len(second)), ROWS)
    parts = [left @ second[start : start + ROWS].astype(np.float64).T for start in starts]
    return np.concatenate(parts, axis=1).astype(np.float32)


def best_matches(cosines: np.ndarray, texts: Sequence[str], top_k: int) -> list[TextMatch]:
    """The texts with the largest of the cosines (N,), best first; of equal ones the earlier.

    Blank texts are left out.
    """
    ranked = map(int, np.argsort(-cosines, kind="stable"))
    best = islice((index for index in ranked if texts[index].strip()), top_k)
    return [TextMatch(index, float(cosines[index]), texts[index]) for index in best]


class EmbedsTexts(Task, ABC):
    """A task whose model gives vectors of texts."""

    @abstractmethod
    def text_encoder(self) -> TextEncoder:
        """The encoder, and how it pools a text."""

    def embed(self, texts: Any, **options: Unpack[EmbedOptions]) -> Any:
        """Vectors of texts in float32.

        Args:
            texts: a list of strings, or one; with granularity="word" also lists of words. The words
                of a string are those of `regard.text.word_spans`.
            options: see `EmbedOptions`.

        Returns:
            (N, D) for texts; for words and tokens a list of `Vectors`, (words, D) or (tokens, D).
            For one text (D,), or its `Vectors`.

        Raises:
            ConfigError: the model has no such layers, or there is no such pooling.
            RegardError: a text is longer than the model reads and `too_long` is "error".
        """
        inputs.warn_if_file(texts)
        too_long = options.pop("too_long", "error")
        embedder = VectorBatches.of(self.text_encoder(), **options)
        single = isinstance(texts, str)
        chunks = list(embedder.chunks([texts] if single else inputs.as_list(texts), too_long))
        if single:
            return chunks[0][0]
        if not isinstance(embedder.unit, TextVectors):
            return list(chain.from_iterable(chunks))
        return np.concatenate(chunks) if chunks else np.zeros((0, embedder.width), np.float32)

    def encode(self, sentences: Any, **options: Unpack[EmbedOptions]) -> Any:
        """As `embed`; long sentences are cut unless `too_long` is "error"."""
        options.setdefault("too_long", "truncate")
        return self.embed(sentences, **options)

    def embed_stream(
        self, texts: Iterable[Any], **options: Unpack[EmbedOptions]
    ) -> Iterator[np.ndarray]:
        """The vectors of any number of texts, in order, in constant memory; see `embed`."""
        too_long = options.pop("too_long", "error")
        embedder = VectorBatches.of(self.text_encoder(), **options)
        return chain.from_iterable(embedder.chunks(inputs.iterate(texts), too_long))

    def similarity(self, a: Any, b: Any, **options: Unpack[EmbedOptions]) -> Any:
        """The cosines of texts: a number for two texts, (len(a), len(b)) for lists.

        options: as of `embed` without `granularity`; vectors are always normalized.

        Raises:
            ConfigError: `granularity` is another than "sentence", or as of `embed`.
            RegardError: as of `embed`.
        """
        options = cast(EmbedOptions, habit_names.embedding(options))
        if (granularity := options.get("granularity", "sentence")) != "sentence":
            raise ConfigError(
                'Cosines are those of texts: `granularity` must be "sentence", but is '
                f"{granularity!r}. For vectors of words or tokens use `embed`."
            )
        sides = [[side] if isinstance(side, str) else inputs.as_list(side) for side in (a, b)]
        options["normalize"] = True
        first, second = (self.embed(side, **options) for side in sides)
        cosines = products(first, second)
        return float(cosines[0, 0]) if isinstance(a, str) and isinstance(b, str) else cosines

    def search(
        self, query: Any, texts: Any, top_k: int = 10, **options: Unpack[EmbedOptions]
    ) -> Any:
        """The `top_k` texts whose vectors have the largest cosines with that of the query, best
        first.

        Of equal cosines the earlier text comes first. Fewer texts than `top_k` are all returned.
        Blank texts are left out, with a warning.

        Args:
            query: a text; of a list of texts, a list of results.
            texts: a list of texts.
            options: as of `similarity`.

        Raises:
            ConfigError: `top_k` is below 1, there is no such option, or as of `similarity`.
            RegardError: an item is not a text, or is longer than the model reads.
        """
        check_at_least(1, top_k=top_k)
        check_options(
            "search", habit_names.embedding(options), ["top_k", *EmbedOptions.__annotations__]
        )
        queries, candidates = [query] if isinstance(query, str) else query, inputs.as_list(texts)
        inputs.warn_of_blank_texts(candidates, "a search leaves them out")
        cosines = self.similarity(queries, candidates, **options)  # (Q, N)
        matches = [best_matches(row, candidates, top_k) for row in cosines]
        return matches[0] if isinstance(query, str) else matches


# ---------------------------------------------------------------------- what a vector represents

# Each unit encodes texts, truncates them to the limit of the model, and pools the hidden states of
# a batch: `states` (N, D) of the tokens of all texts, end to end; `sizes` (B,), tokens of a text.
# `chunk`: texts that are sorted and computed together.


@dataclass(frozen=True)
class EncodedTexts:
    """Texts as encoder inputs; where vectors are of words, of each its words, and how many subwords
    each has (`sizes`).
    """

    inputs: list[EncoderInput]
    words: Sequence[Sequence[str]] = ()
    sizes: Sequence[Sequence[int]] = ()


class _OfTexts:
    """What vectors of texts and of tokens share."""

    def encode(self, input_format: InputFormat, texts: Sequence[Any]) -> EncodedTexts:
        return EncodedTexts(
            input_format.encode([(as_text(text, i),) for i, text in enumerate(texts)])
        )

    def truncated(self, encoded: EncodedTexts, input_format: InputFormat) -> EncodedTexts:
        return EncodedTexts([input_format.truncate(item) for item in encoded.inputs])


@dataclass(frozen=True)
class TextVectors(_OfTexts):
    """A vector per text; with `truncate_dim` its first dimensions."""

    pooling: Pooling
    truncate_dim: int | None = None
    chunk = 1024

    def vectors(self, states: Tensor, sizes: Tensor, encoded: EncodedTexts) -> Tensor:
        vectors = self.pooling.unpadded(states, sizes)
        if self.truncate_dim is None:
            return vectors
        vectors = vectors[:, : self.truncate_dim]
        return F.normalize(vectors, dim=1) if self.pooling.normalize else vectors


@dataclass(frozen=True)
class TokenVectors(_OfTexts):
    """A vector per token."""

    normalize: bool
    chunk = 128

    def vectors(self, states: Tensor, sizes: Tensor, encoded: EncodedTexts) -> Sequence[Tensor]:
        if self.normalize:
            states = F.normalize(states, dim=-1)
        return states.split(sizes.tolist())


# From the subwords of words, (P, D), and how many each word has, (W,), to (W, D).
WORD_POOLINGS = {
    name: KINDS[OTHER_NAMES.get(name, name)] for name in ("mean", "first", "last", "max")
}


@dataclass(frozen=True)
class WordVectors:
    """A vector per word."""

    pooling: str
    normalize: bool
    chunk = 128

    def encode(self, input_format: InputFormat, texts: Sequence[Any]) -> EncodedTexts:
        words = [as_words(text, i) for i, text in enumerate(texts)]
        subwords = input_format.encode_words(words)
        inputs = [_with_template(list(chain.from_iterable(ids)), input_format) for ids in subwords]
        return EncodedTexts(inputs, words, [list(map(len, ids)) for ids in subwords])

    def truncated(self, encoded: EncodedTexts, input_format: InputFormat) -> EncodedTexts:
        limit, inputs, words, sizes = input_format.max_length, [], [], []
        for item, of_text, counts in zip(encoded.inputs, encoded.words, encoded.sizes, strict=True):
            whole = len(counts)  # words that are read as a whole
            if limit is not None and len(item) > limit:
                capacity = limit - input_format.template.special_count(1)
                whole = sum(end <= capacity for end in accumulate(counts))
                ids = item.ids[item.starts[0] :][: sum(counts[:whole])]
                item = _with_template(ids, input_format)
            inputs.append(item)
            words.append(of_text[:whole])
            sizes.append(counts[:whole])
        return EncodedTexts(inputs, words, sizes)

    def vectors(self, states: Tensor, sizes: Tensor, encoded: EncodedTexts) -> Sequence[Tensor]:
        texts = zip(states.split(sizes.tolist()), encoded.inputs, encoded.sizes, strict=True)
        subwords = torch.cat(
            [of_text[item.starts[0] :][: sum(counts)] for of_text, item, counts in texts]
        )  # (P, D): without the special tokens
        counts = torch.tensor(list(chain.from_iterable(encoded.sizes)), device=states.device)
        vectors = WORD_POOLINGS[self.pooling](subwords, counts) if len(counts) else subwords
        if self.normalize:
            vectors = F.normalize(vectors, dim=-1)
        return vectors.split([len(of_text) for of_text in encoded.sizes])


def as_words(item: Any, index: int) -> list[str]:
    """The words of a string, split as for tagging; or the given words."""
    text = inputs.text_or_words(item, index)
    if isinstance(text, str):
        return [text[start:stop] for start, stop in word_spans(text)]
    return text


def as_text(item: Any, index: int) -> str:
    """A text that a user gives, checked to be a string."""
    return inputs.checked_text(item, index, "Give texts as strings.")


def _with_template(ids: list[int], input_format: InputFormat) -> EncoderInput:
    """The subwords of words with the special tokens around them; never an empty input."""
    item = input_format.template.apply([ids])
    return item if item.ids else input_format.encode([("",)])[0]


def unit_of(
    granularity: Granularity,
    pooling: str | None,
    normalize: bool | None,
    of_folder: Pooling,
    truncate_dim: int | None = None,
) -> TextVectors | WordVectors | TokenVectors:
    """What a vector represents, and how it is pooled.

    Raises:
        ConfigError: there is no such unit or pooling.
    """
    if granularity == "sentence":
        kinds = of_folder.kinds if pooling is None else (OTHER_NAMES.get(pooling, pooling),)
        check_choice("pooling", kinds[0], KINDS)
        normalize = of_folder.normalize if normalize is None else normalize
        return TextVectors(replace(of_folder, kinds=kinds, normalize=normalize), truncate_dim)
    if truncate_dim is not None:
        raise ConfigError("`truncate_dim` is of vectors of whole texts.")
    if granularity == "token":
        if pooling is not None:
            raise ConfigError("A token has one vector: there is nothing that `pooling` could pool.")
        return TokenVectors(bool(normalize))
    check_choice("granularity", granularity, get_args(Granularity))
    check_choice("pooling", pooling or "mean", WORD_POOLINGS)
    return WordVectors(pooling or "mean", bool(normalize))


# -------------------------------------------------------------------------------------- computing


@dataclass(frozen=True)
class VectorBatches:
    """Computes vectors of texts with one choice of options.

    budget: tokens of a batch, padding included.
    """

    encoder: Encoder
    input_format: InputFormat
    choice: LayerChoice
    unit: TextVectors | WordVectors | TokenVectors
    precision: Precision
    budget: int

    @classmethod
    def of(cls, source: TextEncoder, **options: Unpack[EmbedOptions]) -> Self:
        """The embedder of these options; see `EmbedOptions`.

        Raises:
            ConfigError: there is no such option, or it has an unknown value.
        """
        given = {name: value for name, value in options.items() if value is not None}
        named: Any = habit_names.embedding(given)
        check_options("embed", named, EmbedOptions.__annotations__)
        precision = named.get("precision", "float32")
        check_choice("precision", precision, get_args(Precision))
        if "combine" in named and not isinstance(named.get("layers"), Sequence):
            raise ConfigError("`combine` is for several layers, such as layers=[-2, -1].")
        pooling, normalize = named.get("pooling"), named.get("normalize")
        budget = named.get("max_tokens_per_batch")
        size = named.get("truncate_dim")
        check_at_least(1, max_tokens_per_batch=budget, truncate_dim=size)
        granularity = named.get("granularity", "sentence")
        batches = cls(
            source.encoder,
            source.input_format,
            choice_of(named.get("layers", -1), named.get("combine", "concat")),
            unit_of(granularity, pooling, normalize, source.pooling, size),
            precision,
            batch_budget(source.encoder) if budget is None else budget,
        )
        if batches.width < (size or 0):
            raise ConfigError(f"Vectors have {batches.width} dimensions: `truncate_dim` is {size}.")
        return batches

    @property
    def width(self) -> int:
        """The length of a vector, D."""
        width = self.choice.width(self.encoder.config.d_model)
        if not isinstance(self.unit, TextVectors):
            return width
        width *= len(self.unit.pooling.kinds)
        return min(width, self.unit.truncate_dim or width)

    def chunks(
        self, texts: Iterable[Any], too_long: batching.TooLong
    ) -> Iterator[np.ndarray | list[np.ndarray]]:
        """The vectors of texts in order, some texts at a time: (n, D), or a list of `Vectors`.

        A warning at the end tells how many texts were truncated.

        Raises:
            RegardError: a text is longer than the model reads and `too_long` is "error".
        """
        batching.check_too_long(too_long)
        done = truncated = 0
        for encoded, long in self.encoded_chunks(texts):
            if long and too_long == "error":
                first = long[0]
                count = len(encoded.inputs[first])
                raise inputs.too_long_error(done + first, count, self.input_format.max_length)
            yield self.vectors(encoded, done)
            done, truncated = done + len(encoded.inputs), truncated + len(long)
        if truncated:
            inputs.warn_of_truncation(truncated, done, "texts", self.input_format.max_length)

    def encoded_chunks(self, texts: Iterable[Any]) -> Iterator[tuple[EncodedTexts, list[int]]]:
        """Chunks of texts as encoder inputs, and which texts of a chunk are too long.

        The next chunk is tokenized in another thread while the caller uses this one.
        """
        texts, done = iter(texts), 0
        chunk = list(islice(texts, self.unit.chunk))
        encoded = self.encode(chunk) if chunk else None
        with ThreadPoolExecutor(1) as thread:
            while encoded is not None:
                done += len(chunk)
                chunk = list(islice(texts, self.unit.chunk))
                future = thread.submit(self.encode, chunk, done) if chunk else None
                yield encoded, self.input_format.too_long(encoded.inputs)
                encoded = future.result() if future else None

    def encode(self, texts: Sequence[Any], before: int = 0) -> EncodedTexts:
        """One chunk of texts as encoder inputs, not truncated; `before` texts came first.

        Raises:
            TextError: an item is not a text.
        """
        try:
            return self.unit.encode(self.input_format, texts)
        except TextError as error:
            raise error.moved(before) from None

    def vectors(self, encoded: EncodedTexts, before: int = 0) -> np.ndarray | list[np.ndarray]:
        """The vectors of each text; texts beyond the limit lose their ends.

        Raises:
            TextError: vectors of a text are infinite or NaN; `before` texts came first.
        """
        if self.input_format.too_long(encoded.inputs):
            encoded = self.unit.truncated(encoded, self.input_format)
        count = len(encoded.inputs)
        if isinstance(self.unit, TextVectors):
            vectors = np.empty((count, self.width), np.float32)
            for numbers, pooled in self._computed(encoded):
                vectors[numbers] = pooled.cpu().numpy()
            finite = torch.from_numpy(np.isfinite(vectors).all(1))
            batching.check_finite(finite, range(before, before + count), "vectors")
            return vectors
        arrays = [np.empty(0, np.float32)] * count
        for numbers, pooled in self._computed(encoded):
            for number, of_text in zip(numbers, pooled, strict=True):
                arrays[number] = of_text.cpu().numpy()
        finite = torch.tensor([bool(np.isfinite(of_text).all()) for of_text in arrays])
        batching.check_finite(finite, range(before, before + count), "vectors")
        token = self.input_format.tokenizer.token
        labels = encoded.words or [list(map(token, item.ids)) for item in encoded.inputs]
        return [Vectors.of(*both) for both in zip(arrays, labels, strict=True)]

    def _computed(self, encoded: EncodedTexts) -> Iterator[tuple[list[int], Any]]:
        """Batch by batch the indices of the texts, and what the unit makes of each."""
        concurrent = batching.passes_at_once(batching.device_of(self.encoder))
        inputs = EncodedInputs.of(encoded.inputs)
        batches = batching.even_batches(inputs, self.input_format.pad, self.budget, concurrent)
        with evaluating(self.encoder):
            yield from batching.computed(partial(self._of_batch, encoded), batches, concurrent)

    @torch.no_grad()
    def _of_batch(self, encoded: EncodedTexts, batch: InputBatch) -> tuple[list[int], Any]:
        """The indices of the texts of a batch, and what the unit makes of each."""
        device, numbers = batching.device_of(self.encoder), batch.numbers.tolist()
        if listening.get() is not None:
            rows = [encoded.inputs[i].ids for i in numbers]
            self.encoder.label_texts(rows, self.input_format.tokenizer.label)
        bfloat16 = self.precision == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            texts = self.encoder.complete(batch.texts, self.input_format.tokenizer).to(device)
            texts = batching.without_padding(self.encoder, texts)
            states = self.encoder.chosen(texts, self.choice).float()
            sizes = [encoded.sizes[i] for i in numbers] if encoded.sizes else ()
            of_batch = EncodedTexts([encoded.inputs[i] for i in numbers], sizes=sizes)
            return numbers, self.unit.vectors(states, texts.lengths, of_batch)


def batch_budget(model: Model) -> int:
    """Tokens of a batch, padding included, for a model in evaluation."""
    return model.tokens_per_pass if batching.device_of(model).type == "cpu" else ELSEWHERE
