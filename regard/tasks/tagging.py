"""A tag for each word: of entities in the text, or tags that stand by themselves.

Words are what comes in and what goes out; pieces are bookkeeping. The head is read at the first
piece of each word (Devlin et al. 2019, section 5.3; for models that read from left to right too, so
that the files mean the same everywhere). Sentences beyond the limit are read in windows, and every
word is answered for once, where it has most context.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data import EpochSampler, RecordReader, TaggedSentence, TokenArray, read_conll
from regard.data.batches import IGNORE, moved
from regard.data.encoder_inputs import InputBatch
from regard.data.files import ending
from regard.data.token_arrays import ReadReport
from regard.data.windows import WordWindows
from regard.errors import ConfigError, DataError, RegardError
from regard.metrics import Accuracy, EntityF1, Score
from regard.metrics.tags import convert, spans
from regard.models.headed import Headed
from regard.tasks.batching import TooLong
from regard.tasks.encoding import (
    EncoderRecipe,
    EncoderTask,
    Part,
    Parts,
    RowsData,
    headed,
    labelled,
)
from regard.tasks.inputs import as_list, text_or_words
from regard.tasks.predictions import Prediction
from regard.tasks.sections import differing
from regard.text import Tokenizer
from regard.text.word_spans import WordSpans

SAMPLES = 12  # sentences that a run's report shows
SCHEME = "IOB2"  # what is learned; a word's tag does not depend on what stands before its entity
PARTS = ("train", "valid", "test")


class TaggingData(RowsData):
    """[data]: files of columns, one word a line, or `.jsonl` with `words` and `tags`."""

    words: int = 0
    """The column of the words, from 0; below 0 from the end. As the one below, not for `.jsonl`."""
    tags: int = -1
    """The column of the tags."""
    entities: bool = True
    """Tags are of entities, in IOB1, IOB2 or IOBES: learned as IOB2, scored by whole entities. If
    not (parts of speech), tags are learned as they stand and scored word by word."""


class TaggingRecipe(EncoderRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: TaggingData


@dataclass(frozen=True, eq=False)
class Tagged:
    """What each row of words should be answered with, and the sentences that they come from.

    places, labels: row by row, where its words begin, and the numbers of their tags.
    """

    places: TokenArray
    labels: TokenArray
    sentences: list[TaggedSentence]


@dataclass(frozen=True)
class Entity:
    """`text` is an entity of this type; it is `source[start:end]`."""

    type: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class TagsPrediction(Prediction):
    """A tag for each word, the probability of each, and the entities where tags say some.

    Entities count characters of the text that was given, or of the words with one space between.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    entities: tuple[Entity, ...]

    def __str__(self) -> str:
        return " ".join(f"{word}/{tag}" for word, tag in zip(self.words, self.tags, strict=True))


class Tagging(EncoderTask):
    """The tag of each word.

    entities: whether tags are of entities; None: where all of the labels are written so.
    """

    name = "tagging"
    prediction_type = TagsPrediction
    head = "tags"
    Recipe = TaggingRecipe
    items = "words"

    def __init__(
        self,
        model: Headed,
        tokenizer: Tokenizer,
        *,
        labels: Sequence[str],
        entities: bool | None = None,
        max_length: int | None = None,
    ):
        super().__init__(model, tokenizer, max_length=max_length)
        self.labels = tuple(labels)
        self.entities = _say_entities(self.labels) if entities is None else entities
        self.goal = ("f1" if self.entities else "accuracy", "max")

    # ---- from a recipe

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """Options without effect, or without what they need."""
        yield from super().problems(recipe)
        data = recipe.data
        if data.words == data.tags:
            yield "data.tags", f"must be another column than `words`, but both are {data.tags}."
        files = [path for part in PARTS if (path := getattr(data, part)) is not None]
        if all(ending(path) in (".jsonl", ".ndjson") for path in files):
            yield from differing(data, "data", ("words", "tags"), "is of files of columns")

    @classmethod
    def from_recipe(cls, recipe: Any, model: Any, tokenizer: Tokenizer) -> Any:
        """The task with its data and a head for its labels, ready to be trained."""
        data = recipe.data
        train = Reading.of(sentences_of(data, "train"), data.entities)
        if len(train.labels) < 2:
            problem = f"has no tag but {train.labels[0]!r} in its column {data.tags}."
            raise DataError(train.report.files[0], None, problem, "Is it the right column?")
        model, labels, remarks = labelled(headed(model), cls.head, train.labels)
        task = cls(
            model, tokenizer, labels=labels, entities=data.entities, max_length=data.max_length
        )
        task.remarks = remarks
        valid = None
        if data.valid is not None:
            valid = task._part(Reading.of(sentences_of(data, "valid"), data.entities))
        task.parts = Parts(task._part(train), valid, data, recipe.seed)
        return task

    @classmethod
    def texts(cls, recipe: Any) -> Iterator[str]:
        """What a tokenizer learns from: the training sentences."""
        return (" ".join(words) for words, _ in sentences_of(recipe.data, "train"))

    @classmethod
    def files(cls, recipe: Any) -> list[str]:
        """The files of data, for the record of a run."""
        return [str(path) for part in PARTS if (path := getattr(recipe.data, part)) is not None]

    def _part(self, read: Reading) -> Part:
        """Encoded sentences with the numbers of their tags; a tag without one is left out."""
        found = WordWindows.of([words for words, _ in read.sentences], self.pieces)
        for number in found.truncated:
            read.report.note(self._cut_note, read.lines[number])
        known = {label: i for i, label in enumerate(self.labels)}
        for (_, tags), line in zip(read.sentences, read.lines, strict=True):
            for tag in tags:
                if tag not in known:
                    read.report.note(f"tag {tag!r}, which the training data has not", line)
        numbers = (known.get(tag, IGNORE) for _, tags in read.sentences for tag in tags)
        targets = Tagged(found.positions, found.arranged(numbers), read.sentences)
        return Part(found.inputs, targets, read.report)

    @property
    def _cut_note(self) -> str:
        return f"a word longer than {self.pieces.max_length} tokens, its end not read"

    # ---- learning

    def counts(self, batch: InputBatch) -> dict[str, int]:
        """Words."""
        return {"loss": int(self._parts().train.targets.places.lengths[batch.numbers].sum())}

    def train_batches(self) -> EpochSampler:
        """Batches without end; each word weighs the same, whatever the length of its sentence."""
        batches, places = super().train_batches(), self._parts().train.targets.places
        self.usual = {"loss": len(places.ids) / batches.batches_per_epoch}
        return batches

    def loss(self, scores: Tensor, batch: InputBatch, targets: Tagged) -> tuple[Tensor, int]:
        """Cross-entropy in nats, over the words that the rows answer for."""
        rows = batch.numbers.cpu().numpy()
        wanted = moved(targets.labels.padded(rows, IGNORE).ids, scores.device)
        read = at_places(scores, targets.places.padded(rows, 0).ids)
        value = F.cross_entropy(read.flatten(0, 1), wanted.flatten(), reduction="sum")
        return value, int(targets.places.lengths[rows].sum())

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Those of entities, or accuracy."""
        return ("f1", "precision", "recall") if self.entities else ("accuracy",)

    def measured(self, valid: Part) -> dict[str, float]:
        """Entity F1, precision and recall on the validation data, or accuracy."""
        targets: Tagged = valid.targets
        rows: Any = valid.rows
        counts = [len(words) for words, _ in targets.sentences]
        best = self._best(WordWindows(rows, targets.places, ()), counts)[0]
        score = self._score(best, targets.sentences)
        if not self.entities:
            return {"accuracy": score.value}
        found: Any = score
        return {"f1": found.value, "precision": found.precision, "recall": found.recall}

    # ---- using

    def predict(self, given: Any) -> Any:
        """The tags of a text, or of a list of words; a list of them for a list of such lists.

        Raises:
            RegardError: there is a space in a word, as if several texts were given.
        """
        if isinstance(given, str):
            return list(self.predictions([given])[0].tags)
        items = as_list(given)
        if any(not isinstance(one, str) for one in items):
            return [list(answer.tags) for answer in self.predictions(items)]
        _refuse_texts(items)
        return list(self.predictions([items])[0].tags)

    tag = predict

    def checked(self, texts: Any) -> list[Any]:
        """Running texts, and lists of words."""
        return [text_or_words(text, place) for place, text in enumerate(as_list(texts))]

    def predictions(
        self, texts: Sequence[str | Sequence[str]], *, too_long: TooLong = "error"
    ) -> list[TagsPrediction]:
        """The tags of several texts, each a running text or a list of words.

        No text is too long. A word of which the pieces alone are more than the model reads is
        tagged by as many as it reads; a warning says in how many texts there are such.
        """
        given = [WordSpans.of(text) for text in self.checked(texts)]
        found = WordWindows.of([one.words for one in given], self.pieces)
        if found.truncated:
            warnings.warn(
                f"{len(found.truncated):,} of {len(given):,} texts have {self._cut_note}",
                stacklevel=2,
            )
        tagged, probabilities = self._best(found, [len(one.spans) for one in given])
        best, probable = iter(tagged), iter(probabilities)
        answers = []
        for one in given:
            count = len(one.spans)
            tags = tuple(islice(best, count))
            entities = tuple(_entities(one, tags)) if self.entities else ()
            answers.append(
                TagsPrediction(one.words, tags, tuple(islice(probable, count)), entities)
            )
        return answers

    def long_ones(self, texts: Sequence[Any]) -> dict[int, int]:
        """None: texts of any length are read, in windows."""
        return {}

    def _best(self, found: WordWindows, counts: Sequence[int]) -> tuple[list[str], list[float]]:
        """The best tag of every word of all sentences, end to end, and its probability.

        counts: how many words each sentence has.
        """
        ends = np.array([*accumulate(counts)], np.int64)
        owners = np.searchsorted(ends, found.positions.offsets[:-1], "right").tolist()
        best = torch.zeros(len(found.positions.ids), dtype=torch.long)
        probabilities = torch.zeros(len(best))
        for batch, scores in self.passes(found.inputs, owners):
            rows = batch.numbers.numpy()
            words = found.words.padded(rows, 0)
            read = at_places(scores, found.positions.padded(rows, 0).ids).softmax(-1)[words.keep]
            probabilities[words.ids[words.keep]], best[words.ids[words.keep]] = read.max(-1)
        return [self.labels[i] for i in best.tolist()], probabilities.tolist()

    # ---- scores

    def evaluate(self, rows: RecordReader[TaggedSentence] | Iterable[Any]) -> list[Score]:
        """The score of the tags of sentences: records of `read_conll`, or pairs (words, tags)."""
        rows = rows if isinstance(rows, RecordReader) else read_conll(rows)
        read = Reading.of(rows, self.entities)
        unknown = sorted(set(read.labels) - set(self.labels))
        if unknown:
            warnings.warn(
                f"{rows.name} has tags that this model does not give: {', '.join(unknown[:10])}",
                stacklevel=2,
            )
        found = WordWindows.of([words for words, _ in read.sentences], self.pieces)
        counts = [len(words) for words, _ in read.sentences]
        return [self._score(self._best(found, counts)[0], read.sentences)]

    @classmethod
    def part_of(cls, recipe: Any, part: str) -> Any:
        """The sentences of one part of a recipe's data."""
        return sentences_of(recipe.data, part)

    def samples(self, recipe: Any) -> list[tuple[str, str, str]]:
        """The first validation sentences: (text, answer, tags)."""
        part = "train" if recipe.data.valid is None else "valid"
        rows = list(islice(sentences_of(recipe.data, part), SAMPLES))
        found = self.predict([words for words, _ in rows])
        return [
            (" ".join(words), " ".join(best), " ".join(_learned(tags, self.entities)))
            for (words, tags), best in zip(rows, found, strict=True)
        ]

    def asked(self, row: Sequence[str]) -> list[str]:
        """What to predict in order to see the model at work on a sample."""
        return row[0].split(" ")

    def rows_to_evaluate(
        self, files: Sequence[Any], columns: Sequence[int | str]
    ) -> RecordReader[TaggedSentence]:
        """The sentences of a file that a user names; `columns` are those of words and tags."""
        try:
            words, tags = (int(column) for column in columns or (0, -1))
        except ValueError:
            given = ",".join(map(str, columns))
            raise ConfigError(
                f"--columns must be the numbers of words and tags, such as 0,3, but is {given}."
            ) from None
        return read_conll(files[0], words=words, tags=tags)

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        return {**super().settings(), "labels": list(self.labels), "entities": self.entities}

    def published(self) -> dict[str, Any]:
        """What config.json says of the labels where other libraries read it."""
        return {
            "id2label": dict(enumerate(self.labels)),
            "label2id": {label: i for i, label in enumerate(self.labels)},
        }

    def _score(self, best: Sequence[str], sentences: Sequence[TaggedSentence]) -> Score:
        """`best` are the tags of all words of all sentences, end to end."""
        wanted, ends = [tags for _, tags in sentences], [0]
        for tags in wanted:
            ends.append(ends[-1] + len(tags))
        metric: Any = EntityF1() if self.entities else Accuracy()
        for tags, (start, stop) in zip(wanted, pairwise(ends), strict=True):
            found = best[start:stop]
            metric.add(*(([found], [tags]) if self.entities else (found, tags)))
        return metric.result()


@dataclass(frozen=True)
class Reading:
    """Sentences with their tags as they are learned, the lines they begin on, and the report."""

    sentences: list[TaggedSentence]
    lines: list[int]
    report: ReadReport

    @classmethod
    def of(cls, rows: RecordReader[TaggedSentence], entities: bool) -> Reading:
        """All sentences of a file.

        Raises:
            DataError: tags of entities are asked for, and one is none.
        """
        sentences, lines = [], []
        for line, (words, tags) in rows.numbered():
            try:
                sentences.append(TaggedSentence(words, tuple(_learned(tags, entities))))
            except RegardError as error:
                hint = "For tags that are none of entities: entities = false in [data]."
                raise DataError(rows.name, line, str(error), hint) from None
            lines.append(line)
        return cls(sentences, lines, rows.report)

    @property
    def labels(self) -> list[str]:
        """The tags, in the alphabet's order."""
        return sorted({tag for _, tags in self.sentences for tag in tags})


def at_places(scores: Tensor, places: Tensor) -> Tensor:
    """(B, T, O) scores and (B, W) places -> (B, W, O)."""
    wanted = moved(places, scores.device)[:, :, None].expand(-1, -1, scores.size(-1))
    return scores.gather(1, wanted)


def sentences_of(data: TaggingData, part: str) -> RecordReader[TaggedSentence]:
    """The sentences of one part of a recipe's data."""
    return read_conll(getattr(data, part), words=data.words, tags=data.tags)


def _learned(tags: Sequence[str], entities: bool) -> Sequence[str]:
    return convert(tags, SCHEME) if entities else tags


def _say_entities(labels: Sequence[str]) -> bool:
    try:
        spans(labels)
    except RegardError:
        return False
    return True


def _refuse_texts(words: Sequence[str]) -> None:
    for word in words:
        if " " in word.strip():
            raise RegardError(
                f"A list of strings is the words of one sentence, but {word!r:.80} has a space. "
                "Give one text as a string, and several texts to `predictions`."
            )


def _entities(given: WordSpans, tags: Sequence[str]) -> Iterator[Entity]:
    for span in spans(tags):
        start, end = given.spans[span.start][0], given.spans[span.stop - 1][1]
        yield Entity(span.type, given.text[start:end], start, end)
