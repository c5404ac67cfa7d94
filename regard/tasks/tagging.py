"""A tag for each word: of the entities of a text, or of the words by themselves.

The head scores the first subword of each word (Devlin et al. 2019, section 5.3), also in causal
models, so that the same files have the same meaning for all models. Sentences longer than the model
reads are split into windows; each word is tagged in the window in which it has most context.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from statistics import fmean
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import EpochSampler, RowReader, TaggedSentence, TokenArray, read_conll
from regard.data.batches import IGNORE, Sequences, moved
from regard.data.encoder_inputs import InputBatch, WordWindows
from regard.data.files import ending
from regard.data.readers import ReadReport
from regard.errors import ConfigError, DataError, RegardError, warn
from regard.layers.chart import CRF, CRFHead, Transitions
from regard.metrics import Accuracy, EntityF1, Score, Scores
from regard.metrics.entities import convert_tags, spans
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks import encoding
from regard.tasks.batching import TooLong, check_too_long
from regard.tasks.encoder_training import headed, labelled
from regard.tasks.inputs import as_list, text_or_words
from regard.tasks.sections import EncoderRecipe, Problems, RowsData, differing
from regard.tasks.task import Prediction, Predicts
from regard.text import Tokenizer
from regard.text.word_spans import Splitter, WordSpans, word_spans

Scheme = Literal["IOB1", "IOB2", "IOBES", "none"]


class TaggingData(RowsData):
    """[data]: files of columns, one word a line, or `.jsonl` with `words` and `tags`."""

    words: int | None = None
    """The column of the words, from 0, below 0 from the end; without it the first one, or FORM of
    `.conllu`. As the one below, not for `.jsonl`."""
    tags: int | None = None
    """The column of the tags; without it the last one, or UPOS of `.conllu`."""
    header: bool | None = None
    """Whether the first line holds the names of the columns; without it, one that looks like a
    header is an error."""
    scheme: Scheme = "IOB2"
    """The scheme of the entity tags that are learned, whichever of IOB1, IOB2 and IOBES the files
    have; scores are of whole entities. "none" (parts of speech): tags are learned as they are and
    scored word by word."""

    def read(self, source: Any, part: str) -> RowReader:
        """All examples of a file."""
        return read_conll(source, words=self.words, tags=self.tags, header=self.header)

    def texts(self) -> Iterator[str]:
        """The training sentences, from which a tokenizer learns."""
        return (" ".join(words) for words, _ in self.records("train"))


class TaggingRecipe(EncoderRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: TaggingData


@dataclass(frozen=True, eq=False)
class TagTargets:
    """The targets of windows of words, and the sentences that they come from.

    positions, labels: of each window the positions of the first subwords of its words, and the
        indices of their tags.
    """

    positions: TokenArray
    labels: TokenArray
    sentences: list[TaggedSentence]


@dataclass(frozen=True)
class Entity:
    """`text` is an entity of this type; it is `source[start:end]`.

    score: the mean probability of the tags of its words.
    words: (first, stop) of these, among the words of the prediction.
    """

    type: str
    text: str
    start: int
    end: int
    score: float
    words: tuple[int, int]


@dataclass(frozen=True)
class TagsPrediction(Prediction):
    """A tag for each word, the probability of each, and the entities that the tags mark.

    Offsets of entities count characters of the given text; of a list of words, those of the words
    joined by single spaces.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    entities: tuple[Entity, ...]

    @property
    def result(self) -> list[str]:
        """The tags."""
        return list(self.tags)

    def __str__(self) -> str:
        return " ".join(f"{word}/{tag}" for word, tag in zip(self.words, self.tags, strict=True))


class Tagger(encoding.EncoderTask):
    """The tag of each word.

    labels: in the order of the head's scores.  scheme: see `TaggingData`; None: "IOB2" where every
        label is an entity tag, else "none".
    """

    name = "tagging"
    prediction_type = TagsPrediction
    predict: Predicts[str, list[str], TagsPrediction]
    head = "tags"
    names_outputs = True
    pipeline = "token-classification"
    file_ending = "conll"
    read_records = staticmethod(read_conll)
    Recipe = TaggingRecipe
    items = "words"

    def __init__(
        self,
        module: EncoderWithHeads,
        tokenizer: Tokenizer,
        *,
        labels: Sequence[str],
        scheme: Scheme | None = None,
        max_length: int | None = None,
    ):
        super().__init__(module, tokenizer, max_length=max_length)
        self.labels = tuple(labels)
        inferred: Scheme = "IOB2" if _are_entity_tags(self.labels) else "none"
        self.scheme = inferred if scheme is None else scheme
        by_entity = self.scheme != "none"
        self.metric_names = ("f1", "precision", "recall") if by_entity else ("accuracy",)
        self.goal = (self.metric_names[0], "max")

    # ---- from a recipe

    @classmethod
    def problems(cls, recipe: Any) -> Problems:
        """Options without effect, or without what they need."""
        yield from super().problems(recipe)
        data = recipe.data
        if data.words == data.tags is not None:
            yield "data.tags", f"must be another column than `words`, but both are {data.tags}."
        if all(ending(file) in (".jsonl", ".ndjson") for file in data.files_of_examples()):
            yield from differing(
                data, "data", ("words", "tags", "header"), "is of files of columns"
            )

    @classmethod
    def from_recipe(cls, recipe: TaggingRecipe, model: nn.Module, tokenizer: Tokenizer) -> Self:
        """The task with its data and a head for its labels, ready to be trained.

        Raises:
            ConfigError: the model is not an encoder.
            DataError: the data has a single tag, or one that does not mark an entity.
        """
        data = recipe.data
        train = LearnedSentences.of(data.records("train"), data.scheme)
        if len(train.labels) < 2:
            problem = f"has no tag but {train.labels[0]!r}."
            raise DataError(train.report.files[0], None, problem, "Is it the right column?")
        model, labels, remarks = labelled(headed(model), cls.head, train.labels)
        task = cls(model, tokenizer, labels=labels, **cls.options_in(recipe))
        task.remarks = remarks
        valid = None
        if data.valid is not None:
            valid = task._part(LearnedSentences.of(data.records("valid"), data.scheme))
        task.parts = encoding.Parts(task._part(train), valid, data, recipe.seed)
        return task

    def _part(self, learned: LearnedSentences) -> encoding.Part:
        """Encoded sentences with the indices of their tags; unknown tags have no loss."""
        windows = WordWindows.of([words for words, _ in learned.sentences], self.input_format)
        for number in windows.truncated:
            learned.report.note(self._cut_note, learned.lines[number])
        label_ids = {label: i for i, label in enumerate(self.labels)}
        for (_, tags), line in zip(learned.sentences, learned.lines, strict=True):
            for tag in tags:
                if tag not in label_ids:
                    learned.report.note(f"tag {tag!r}, which the training data lacks", line)
        tag_ids = (label_ids.get(tag, IGNORE) for _, tags in learned.sentences for tag in tags)
        targets = TagTargets(windows.positions, windows.arranged(tag_ids), learned.sentences)
        return encoding.Part(windows.inputs, targets, learned.report)

    @property
    def _cut_note(self) -> str:
        return f"a word longer than {self.input_format.max_length} tokens, its end not read"

    # ---- training

    def counts(self, batch: InputBatch) -> dict[str, int]:
        """Words."""
        return {"loss": int(self._parts().train.targets.positions.lengths[batch.numbers].sum())}

    def train_batches(self) -> EpochSampler:
        """Batches without end; each word weighs the same, whatever the length of its sentence."""
        batches, words = super().train_batches(), self._parts().train.targets.positions
        self.usual = {"loss": len(words.ids) / batches.batches_per_epoch}
        return batches

    def loss(self, scores: Tensor, batch: InputBatch, targets: TagTargets) -> tuple[Tensor, int]:
        """The sum of the losses in nats, and the number of words; scores: (B, T, O)."""
        rows = batch.numbers.cpu().numpy()
        tag_ids = moved(targets.labels.padded(rows, IGNORE).ids, scores.device)
        word_scores = at_positions(scores, targets.positions.padded(rows, 0).ids)
        return self.word_loss(word_scores, tag_ids), int(targets.positions.lengths[rows].sum())

    def word_loss(self, scores: Tensor, tags: Tensor) -> Tensor:
        """The sum of the losses of words, in nats; scores: (B, W, O), tags: (B, W) or IGNORE."""
        return F.cross_entropy(scores.flatten(0, 1), tags.flatten(), reduction="sum")

    def measured(self, valid: encoding.Part) -> dict[str, float]:
        """Entity F1, precision and recall on the validation data, or accuracy."""
        targets: TagTargets = valid.targets
        inputs: Any = valid.inputs
        counts = [len(words) for words, _ in targets.sentences]
        best = self._best(WordWindows(inputs, targets.positions, ()), counts)[0]
        score: Any = self._score(best, targets.sentences)
        if self.scheme == "none":
            return {"accuracy": score.value}
        return {"f1": score.value, "precision": score.precision, "recall": score.recall}

    # ---- predictions

    def tag(self, texts: Any, *, splitter: Splitter = word_spans) -> Any:
        return self.predict(texts, splitter=splitter)

    def checked(self, texts: Any) -> list[Any]:
        """Texts as strings or lists of words."""
        return [text_or_words(text, index) for index, text in enumerate(as_list(texts))]

    def _predictions(
        self,
        texts: Sequence[str | Sequence[str]],
        *,
        too_long: TooLong = "error",
        splitter: Splitter = word_spans,
    ) -> list[TagsPrediction]:
        """The tags of texts, each a string or a list of words.

        splitter: gives (start, stop) of each word of a string, in characters.

        No text is too long. A word with more subwords than the model reads is tagged by the first
        of them; a warning gives the number of texts with such words.
        """
        check_too_long(too_long)
        split_texts = [WordSpans.of(text, splitter) for text in self.checked(texts)]
        windows = WordWindows.of(
            [split_text.words for split_text in split_texts], self.input_format
        )
        if windows.truncated:
            warn(
                f"{len(windows.truncated):,} of {len(split_texts):,} texts have {self._cut_note}",
            )
        tags_of_all, shares_of_all = self._best(
            windows, [len(split_text.spans) for split_text in split_texts]
        )
        best, probable = iter(tags_of_all), iter(shares_of_all)
        tagged_texts = []
        for split_text in split_texts:
            count = len(split_text.spans)
            tags, shares = tuple(islice(best, count)), tuple(islice(probable, count))
            entities = () if self.scheme == "none" else _entities(split_text, tags, shares)
            tagged_texts.append(TagsPrediction(split_text.words, tags, shares, tuple(entities)))
        return tagged_texts

    def over_limit(self, texts: Sequence[Any]) -> dict[int, int]:
        """Empty: texts of any length are read, in windows."""
        return {}

    def _best(self, windows: WordWindows, counts: Sequence[int]) -> tuple[list[str], list[float]]:
        """The most probable tag of every word of all sentences, end to end, and its probability.

        counts: the words of each sentence.
        """
        best = torch.zeros(len(windows.positions.ids), dtype=torch.long)
        probabilities = torch.zeros(len(best))
        for words, word_scores in of_words(self, windows, counts):
            shares, tags = self.best_tags(word_scores, words.keep)
            at = words.ids[words.keep]
            probabilities[at], best[at] = shares[words.keep], tags[words.keep]
        return [self.labels[i] for i in best.tolist()], probabilities.tolist()

    def best_tags(self, scores: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The probability and the index of the tag that each word gets, (B, W) twice.

        scores: (B, W, O) of the words.  keep: (B, W), False behind the words of a sentence.
        """
        return scores.softmax(-1).max(-1)

    # ---- scores

    def evaluate(
        self,
        rows: RowReader | Iterable[Any],
        *,
        columns: Sequence[int | str] = (),
    ) -> Scores:
        """The score of the predicted tags.

        rows: of `read_conll`, or pairs (words, tags).  columns: the numbers of words and tags.
        """
        rows = self.opened(rows, columns)
        learned = LearnedSentences.of(rows, self.scheme)
        unknown = sorted(set(learned.labels) - set(self.labels))
        if unknown:
            warn(
                f"{rows.name} has tags that this model does not predict: {', '.join(unknown[:10])}",
            )
        windows = WordWindows.of([words for words, _ in learned.sentences], self.input_format)
        counts = [len(words) for words, _ in learned.sentences]
        return Scores([self._score(self._best(windows, counts)[0], learned.sentences)])

    classification_report = encoding.report_by_label

    def sample(self, row: TaggedSentence) -> tuple[Any, str, str]:
        words, tags = row
        return list(words), " ".join(words), " ".join(_learned(tags, self.scheme))

    def rows_to_evaluate(
        self, files: Sequence[Any], columns: Sequence[int | str] = (), delimiter: str | None = None
    ) -> RowReader:
        """The sentences of a file; `columns` are those of words and tags."""
        encoding.no_columns((), delimiter)
        if columns and [type(column) for column in columns] != [int, int]:
            raise ConfigError(
                "`columns` must be the numbers of words and tags, such as 0,3, but is "
                f"{','.join(map(str, columns))}."
            )
        words, tags = columns or (None, None)
        return read_conll(files[0], words=words, tags=tags)

    @classmethod
    def is_for(cls, model: nn.Module, config: Mapping[str, Any]) -> bool:
        """Whether the model has the head, which that of a parser may stand beside."""
        heads = model.heads if isinstance(model, EncoderWithHeads) else ()
        return super().is_for(model, config) and "chart" not in heads

    def _score(self, best: Sequence[str], sentences: Sequence[TaggedSentence]) -> Score:
        """The score of the tags `best` of all words of all sentences, end to end."""
        words, by_entity = iter(best), self.scheme != "none"
        metric: Any = EntityF1() if by_entity else Accuracy()
        for _, tags in sentences:
            predicted = list(islice(words, len(tags)))
            metric.add(*(([predicted], [tags]) if by_entity else (predicted, tags)))
        return metric.result()


@dataclass(frozen=True)
class LearnedSentences:
    """Sentences with the tags to be learned, the lines on which they begin, and the report."""

    sentences: list[TaggedSentence]
    lines: list[int]
    report: ReadReport

    @classmethod
    def of(cls, rows: RowReader, scheme: Scheme) -> LearnedSentences:
        """All sentences of a file.

        Raises:
            DataError: tags mark entities, but one belongs to no scheme.
        """
        sentences, lines = [], []
        for line, (words, tags) in rows.numbered():
            try:
                sentences.append(TaggedSentence(words, tuple(_learned(tags, scheme))))
            except RegardError as error:
                hint = 'Tags that mark no entities need scheme = "none" in [data].'
                raise DataError(rows.name, line, str(error), hint) from None
            lines.append(line)
        return cls(sentences, lines, rows.report)

    @property
    def labels(self) -> list[str]:
        """The tags, in alphabetical order."""
        return sorted({tag for _, tags in self.sentences for tag in tags})


def at_positions(scores: Tensor, positions: Tensor) -> Tensor:
    """Scores (B, T, O) at the positions (B, W): (B, W, O)."""
    index = moved(positions, scores.device)[:, :, None].expand(-1, -1, scores.size(-1))
    return scores.gather(1, index)


def of_words(
    task: encoding.EncoderTask, windows: WordWindows, counts: Sequence[int]
) -> Iterator[tuple[Sequences, Tensor]]:
    """For each batch the numbers of its words among those of all sentences, (B, W), and the scores
    of the words, (B, W, O).

    counts: the words of each sentence.
    """
    owners = np.searchsorted(np.cumsum(counts), windows.positions.offsets[:-1], "right")
    for batch, scores in task.passes(windows.inputs, owners.tolist()):
        rows = batch.numbers.numpy()
        positions = windows.positions.padded(rows, 0).ids
        yield windows.words.padded(rows, 0), at_positions(scores, positions)


def _learned(tags: Sequence[str], scheme: Scheme) -> Sequence[str]:
    return tags if scheme == "none" else convert_tags(tags, scheme)


def _are_entity_tags(labels: Sequence[str]) -> bool:
    try:
        spans(labels)
    except RegardError:
        return False
    return True


def _entities(
    split_text: WordSpans, tags: Sequence[str], shares: Sequence[float]
) -> Iterator[Entity]:
    for span in spans(tags):
        start, end = split_text.spans[span.start][0], split_text.spans[span.stop - 1][1]
        score = fmean(shares[span.start : span.stop])
        words = span.start, span.stop
        yield Entity(span.type, split_text.text[start:end], start, end, score, words)


class CRFTagger(Tagger):
    """The most probable tags of the words of a sentence together.

    `probabilities` of a prediction are those of each tag at its word, whatever the other tags are.
    """

    name = "crf-tagging"
    head = "crf"

    @classmethod
    def problems(cls, recipe: Any) -> Problems:
        """Options without effect, or without what they need."""
        yield from super().problems(recipe)
        if recipe.data.scheme not in ("IOB2", "none"):
            yield "data.scheme", 'must be "IOB2" or "none": the transitions are those of IOB2.'

    @property
    def crf(self) -> CRF:
        """The transitions, under the head."""
        return cast(CRFHead, self.module.head(self.head)).crf

    @cached_property
    def allowed(self) -> Transitions | None:
        """The transitions of well-formed entities; None for other tags."""
        return Transitions.of_iob2(self.labels) if self.scheme == "IOB2" else None

    def word_loss(self, scores: Tensor, tags: Tensor) -> Tensor:
        """The sum of -log p(tags | sentence) of the sentences, in nats; see `Tagger`."""
        return self.crf.loss(scores.float(), tags, tags != IGNORE)

    def best_tags(self, scores: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """The sequence of tags that is best as a whole."""
        scores = scores.float()
        best = self.crf.best(scores, keep, self.allowed)
        shares = self.crf.probabilities(scores, keep, self.allowed)
        return shares.gather(2, best[..., None])[..., 0], best
