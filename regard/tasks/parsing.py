"""Constituency parsing with a chart over any encoder (Stern et al. 2017; Kitaev and Klein 2018).

    words -> encoder -> hidden states of words -> scores of all spans -> the best tree (CKY)

The head scores each label of each span of words; a unary chain such as S over VP is one label. The
tree with the highest sum is found exactly, and training asks that the gold tree be ahead of every
other tree by the number of spans in which they differ (`regard.layers.chart`). A second head tags
the words. A sentence longer than the model reads is read in windows; its tree is one chart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import RowReader, TokenArray, read_treebank
from regard.data.batches import IGNORE, moved
from regard.data.encoder_inputs import InputBatch, WordWindows
from regard.data.readers import ReadReport
from regard.decoding.steps import evaluating
from regard.errors import DataError, TextError, check_at_least
from regard.layers import chart
from regard.metrics import Accuracy, Scores
from regard.metrics.brackets import BracketF1, BracketScore
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks import encoding
from regard.tasks.batching import TooLong, check_finite, check_too_long, device_of
from regard.tasks.encoder_training import headed
from regard.tasks.inputs import as_list, text_or_words
from regard.tasks.sections import EncoderRecipe, RowsData
from regard.tasks.tagging import at_positions, of_words
from regard.tasks.task import Prediction, Predicts
from regard.text import Tokenizer
from regard.text.trees import UNESCAPED, WORD, ConstituencyTree, Span, chains, tree_of, unchained
from regard.text.word_spans import WordSpans


@dataclass(frozen=True)
class Sentence:
    """What is parsed: words, and their tags where they are known."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None

    @classmethod
    def of(cls, text: str | Sequence[str]) -> Sentence:
        """Of a running text, or of a list of words."""
        return cls(WordSpans.of(text).words if isinstance(text, str) else tuple(text))

    @classmethod
    def of_tree(cls, tree: ConstituencyTree) -> Sentence:
        """The words of a gold tree with its tags."""
        return cls(tuple(tree.words), tuple(tree.tags))


def sentence_or_words(item: Any, index: int) -> str | list[str]:
    """A sentence as a str, or its words as a list, each of which a tree can have.

    Raises:
        TextError: it is neither, or a word is empty or has white space.
    """
    sentence = text_or_words(item, index)
    for number, word in enumerate(sentence if isinstance(sentence, list) else (), 1):
        if word.split() != [word]:
            problem = f"has {word!r:.80} as word {number}, which is no single word."
            hint = "Words of a tree are not empty and have no white space; or give a text."
            raise TextError(index, problem, hint)
    return sentence


def read_form(word: str) -> str:
    """A word of a treebank as a model reads it: -LRB- is (."""
    return UNESCAPED.get(word, word)


@dataclass(frozen=True)
class LearnedTrees:
    """Trees with the lines on which they begin, and the report of the reader."""

    trees: list[ConstituencyTree]
    lines: list[int]
    report: ReadReport

    @classmethod
    def of(cls, rows: RowReader) -> LearnedTrees:
        """All trees of a file."""
        lines, trees = zip(*rows.numbered(), strict=True)
        return cls(list(trees), list(lines), rows.report)


def bracket_score(
    predicted: Sequence[ConstituencyTree], gold: Sequence[ConstituencyTree]
) -> BracketScore:
    """The F1 of labelled brackets, equal to EVALB's for trees with the tags of the gold trees.

    So parsers that predict other tags, or none, are scored on the same words: with a wrong tag of
    punctuation EVALB would leave the whole sentence out.
    """
    metric, tagged = BracketF1(), []
    for tree, right in zip(predicted, gold, strict=True):
        words = tree.words
        tagged.append(tree_of(words, right.tags, tree.spans()) if words == right.words else tree)
    metric.add(tagged, gold)
    return metric.result()


def bracket_values(score: BracketScore) -> dict[str, float]:
    """What validation reports of a score."""
    return {
        "f1": score.value,
        "precision": score.precision,
        "recall": score.recall,
        "exact": score.exact_match,
    }


METRIC_NAMES = ("f1", "precision", "recall", "exact")


def shown_words(tree: ConstituencyTree) -> str:
    """The sentence of a tree, as a model reads it."""
    return " ".join(map(read_form, tree.words))


SPANS_AT_ONCE = 40_000  # of a batch of charts
MOST_WORDS = 2000  # of a sentence to parse: its chart has two million spans
# Words of a sentence times the trees that are asked for: of two parts of a span all pairs of their
# best trees are compared, 400 MB at most.
MOST_RANKED = 20_000


class ParsingData(RowsData):
    """[data]: files of trees in brackets, or `.jsonl` with `tree`."""

    inputs: Literal["words", "tags"] = "words"
    """What the model reads: the words, or in their place their gold tags."""

    def read(self, source: Any, part: str) -> RowReader:
        """All trees of a file."""
        return read_treebank(source)

    def texts(self) -> Iterator[str]:
        """The training sentences, from which a tokenizer learns."""
        trees = self.records("train")
        if self.inputs == "tags":
            return (" ".join(tree.tags) for tree in trees)
        return map(shown_words, trees)


class ParsingRecipe(EncoderRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: ParsingData


@dataclass(frozen=True)
class ParsePrediction(Prediction):
    """The best tree of a sentence in brackets, its score, and the best trees, this one first."""

    tree: str
    score: float
    n_best: tuple[tuple[ConstituencyTree, float], ...]

    @property
    def best(self) -> ConstituencyTree:
        """The best tree."""
        return self.n_best[0][0]

    def values(self) -> dict[str, Any]:
        """All fields as plain values, trees in brackets."""
        n_best = [{"tree": str(tree), "score": score} for tree, score in self.n_best]
        return {**n_best[0], "words": self.best.words, "tags": self.best.tags, "n_best": n_best}

    @classmethod
    def empty_values(cls) -> dict[str, Any]:
        return dict.fromkeys(("tree", "score", "words", "tags", "n_best"))


@dataclass(frozen=True)
class ParsingTargets:
    """For each input the positions of its words, their tags, and the labelled spans of its tree.

    spans: (M, 3) of all trees end to end: start, stop, label.  offsets: of the spans of each tree.
    """

    positions: TokenArray
    tags: TokenArray | None
    spans: np.ndarray
    offsets: np.ndarray
    trees: list[ConstituencyTree]

    def gold(self, rows: np.ndarray, size: int) -> Tensor:
        """The chart of the labels of a batch, (B, N, N); 0 for none."""
        gold = np.zeros((len(rows), size, size), np.int64)
        for cells, row in zip(gold, rows.tolist(), strict=True):
            starts, stops, labels = self.spans[self.offsets[row] : self.offsets[row + 1]].T
            cells[starts, stops - starts - 1] = labels
        return torch.from_numpy(gold)


class Parser(encoding.EncoderTask):
    """The constituency tree of each sentence.

    labels: of spans, in the order of the head's scores.  tags: of words, in the order of the scores
        of the head "tags"; without, all words have the tag XX.  inputs: see [data].
    """

    name = "parsing"
    prediction_type = ParsePrediction
    predict: Predicts[str, str, ParsePrediction]
    head = "chart"
    file_ending = "mrg"
    read_records = staticmethod(read_treebank)
    Recipe = ParsingRecipe
    items = "sentences"
    goal = ("f1", "max")
    metric_names = METRIC_NAMES

    def __init__(
        self,
        module: EncoderWithHeads,
        tokenizer: Tokenizer,
        *,
        labels: Sequence[str],
        tags: Sequence[str] = (),
        inputs: Literal["words", "tags"] = "words",
        max_length: int | None = None,
    ):
        super().__init__(module, tokenizer, max_length=max_length)
        self.labels, self.tags, self.inputs = tuple(labels), tuple(tags), inputs

    # ---- from a recipe

    @classmethod
    def from_recipe(cls, recipe: ParsingRecipe, model: nn.Module, tokenizer: Tokenizer) -> Self:
        """The task with its data and heads for its labels and tags, ready to be trained.

        Raises:
            ConfigError: the model is not an encoder.
            DataError: no sentence is short enough.
        """
        data = recipe.data
        train = LearnedTrees.of(data.records("train"))
        labels = sorted({label for tree in train.trees for label in chains(tree).values()})
        tags = sorted({tag for tree in train.trees for tag in tree.tags})
        model = _with_heads(headed(model), labels, tags if data.inputs == "words" else ())
        task = cls(
            model,
            tokenizer,
            labels=labels,
            tags=tags if data.inputs == "words" else (),
            **cls.options_in(recipe),
        )
        valid = None
        if data.valid is not None:
            valid = task._part(LearnedTrees.of(data.records("valid")), whole=True)
        task.parts = encoding.Parts(task._part(train, whole=False), valid, data, recipe.seed)
        return task

    def _part(self, learned: LearnedTrees, *, whole: bool) -> encoding.Part:
        """Encoded sentences with their trees.

        whole: all trees, for validation; otherwise those that fit into one window.
        """
        trees = learned.trees if whole else self._short(learned)
        windows = WordWindows.of(list(map(self._read_of_tree, trees)), self.input_format)
        label_ids = {label: i for i, label in enumerate(self.labels, 1)}
        spans = [
            [
                (*span, label_ids[label])
                for span, label in chains(tree).items()
                if label in label_ids
            ]
            for tree in trees
        ]
        tags = None
        if self.tags:
            tag_ids = {tag: i for i, tag in enumerate(self.tags)}
            tags = windows.arranged(tag_ids.get(tag, IGNORE) for tree in trees for tag in tree.tags)
        flat = np.array(list(chain.from_iterable(spans)), np.int64).reshape(-1, 3)
        offsets = np.array([0, *accumulate(map(len, spans))], np.int64)
        targets = ParsingTargets(windows.positions, tags, flat, offsets, trees)
        return encoding.Part(windows.inputs, targets, learned.report)

    def _short(self, learned: LearnedTrees) -> list[ConstituencyTree]:
        """The trees of sentences that the model reads as a whole."""
        limit = self.input_format.max_length
        if limit is None:
            return learned.trees
        room, short_trees = limit - self.input_format.template.special_count(1), []
        encoded = self.input_format.encode_words(list(map(self._read_of_tree, learned.trees)))
        for tree, words, line in zip(learned.trees, encoded, learned.lines, strict=True):
            if sum(map(len, words)) <= room:
                short_trees.append(tree)
            else:
                learned.report.note(f"longer than {limit} tokens, tree left out", line)
        if not short_trees:
            problem = f"every sentence is longer than {limit} tokens."
            raise DataError(learned.report.files[0], None, problem, "Raise max_length in [data].")
        return short_trees

    def _read_of_tree(self, tree: ConstituencyTree) -> list[str]:
        return self._read(Sentence.of_tree(tree))

    def _read(self, sentence: Sentence) -> list[str]:
        """What the model reads of a sentence, word by word."""
        if self.inputs == "tags":
            return list(sentence.tags or sentence.words)
        return list(map(read_form, sentence.words))

    # ---- training

    def scores_of(self, pooled: Tensor, batch: Any) -> Tensor:
        """The hidden states, (B, T, D): spans are scored when it is known where words begin."""
        return cast(Tensor, batch.texts.pad(pooled))

    def loss(
        self, scores: Tensor, batch: InputBatch, targets: ParsingTargets
    ) -> tuple[Tensor, int]:
        """The sum of the margins by which other trees are ahead, and of the cross-entropies of the
        tags in nats; and the number of sentences.

        scores: hidden states (B, T, D).
        """
        rows, device = batch.numbers.cpu().numpy(), scores.device
        positions = targets.positions.padded(rows, 0)
        words = at_positions(scores, positions.ids)  # (B, N, D)
        spans = chart.Spans.of(moved(positions.lengths, device), words.size(1))
        gold = moved(targets.gold(rows, words.size(1)), device)
        value = chart.max_margin_loss(
            self.chart.span_scores(words, spans).float(), gold, spans
        ).sum()
        if targets.tags is not None:
            gold_tags = moved(targets.tags.padded(rows, IGNORE).ids, device)
            tag_scores = self.module.scores_from("tags", words).float()
            value = value + F.cross_entropy(
                tag_scores.flatten(0, 1), gold_tags.flatten(), reduction="sum", ignore_index=IGNORE
            )
        return value, len(rows)

    def measured(self, valid: encoding.Part) -> dict[str, float]:
        """F1, precision, recall and exact match of brackets on the validation data."""
        trees = valid.targets.trees
        predicted = self._trees([Sentence.of_tree(tree) for tree in trees])
        return bracket_values(bracket_score(predicted, trees))

    @property
    def chart(self) -> chart.ChartHead:
        """The head that scores spans."""
        return cast(chart.ChartHead, self.module.heads["chart"])

    # ---- predictions

    def parse(self, texts: Any) -> Any:  # type: ignore[override]  # it generates no text
        """The tree of a sentence; for a list of sentences, each a text or a list of words, a list.

        Raises:
            TextError: a text has no word.
        """
        predictions = self.predict(texts, return_proba=True)
        return predictions.best if isinstance(texts, str) else [each.best for each in predictions]

    def checked(self, texts: Any) -> list[Any]:
        """Sentences as strings or lists of words."""
        return [sentence_or_words(text, index) for index, text in enumerate(as_list(texts))]

    def _predictions(
        self,
        texts: Sequence[str | Sequence[str]],
        *,
        too_long: TooLong = "error",
        n_best: int = 1,
    ) -> list[ParsePrediction]:
        """The best trees of sentences, each a string or a list of words.

        Sentences longer than the model reads are read in windows. A model that reads tags is given
        tags.

        Raises:
            ConfigError: `n_best` is below 1.
            TextError: a text has no word, or more than `MOST_WORDS`, or too many for so many trees.
        """
        check_too_long(too_long)
        check_at_least(1, n_best=n_best)
        sentences = []
        for index, text in enumerate(self.checked(texts)):
            sentence = Sentence.of(text)
            if self.inputs == "tags":
                tags = tuple(text.split() if isinstance(text, str) else text)
                sentence = Sentence(tags, tags)
            if not sentence.words:
                raise TextError(index, "has no word, so it has no tree.")
            limit = MOST_WORDS if n_best == 1 else MOST_RANKED // n_best
            if len(sentence.words) > limit:
                problem = f"has {len(sentence.words):,} words, more than {limit:,} for its trees."
                raise TextError(index, problem, "Give its sentences alone, or lower `n_best`.")
            sentences.append(sentence)
        return [
            ParsePrediction(str(ranked[0][0]), ranked[0][1], tuple(ranked))
            for ranked in self._parses(sentences, n_best)
        ]

    def over_limit(self, texts: Sequence[Any]) -> dict[int, int]:
        """Empty: sentences of any length are read, in windows."""
        return {}

    def _trees(self, sentences: Sequence[Sentence]) -> list[ConstituencyTree]:
        return [ranked[0][0] for ranked in self._parses(sentences, 1)]

    @torch.no_grad()
    def _parses(
        self, sentences: Sequence[Sentence], n_best: int
    ) -> list[list[tuple[ConstituencyTree, float]]]:
        """The best trees of each sentence with their scores, best first."""
        hidden = self._hidden(list(map(self._read, sentences)))
        results: list[list[tuple[ConstituencyTree, float]]] = [[] for _ in sentences]
        with evaluating(self.module):
            for numbers in _batches(list(map(len, hidden)), n_best):
                parsed = self._charts(hidden, numbers, n_best)
                for number, (trees, tags) in zip(numbers, parsed, strict=True):
                    sentence = sentences[number]
                    tags = list(sentence.tags or ()) if self.inputs == "tags" else tags
                    results[number] = [
                        (tree_of(sentence.words, tags, unchained(spans)), score)
                        for score, spans in trees
                    ]
        return results

    def _hidden(self, sentences: Sequence[Sequence[str]]) -> list[Tensor]:
        """The hidden states of the words of each sentence, (N, D), on the CPU."""
        windows = WordWindows.of(sentences, self.input_format)
        counts = list(map(len, sentences))
        states = torch.zeros(sum(counts), self.module.config.d_model)
        for words, word_states in of_words(self, windows, counts):
            states[words.ids[words.keep]] = word_states[words.keep]
        return list(states.split(counts))

    def _charts(
        self, hidden: Sequence[Tensor], numbers: Sequence[int], n_best: int
    ) -> list[tuple[list[tuple[float, list[Span]]], list[str]]]:
        """Of the sentences with these numbers the best trees, as scores and spans, and the tags of
        their words.

        Raises:
            NonFiniteScores: scores of a sentence are infinite or NaN.
        """
        device, states = device_of(self.module), [hidden[number] for number in numbers]
        lengths = torch.tensor(list(map(len, states)), device=device)
        padded = nn.utils.rnn.pad_sequence(states, batch_first=True)
        words = padded.to(device, self.chart.ends.dtype)
        spans = chart.Spans.of(lengths, words.size(1))
        span_scores = self.chart.span_scores(words, spans).float()
        check_finite(spans.sums((~span_scores.isfinite()).any(-1).float()) == 0, numbers)
        scores = spans.chart(span_scores, words.size(1))
        best = _best(scores, lengths) if n_best == 1 else _several(scores, lengths, n_best)
        tags = self._tags_of(words)
        return [
            ([(score, self._named(spans)) for score, spans in trees], word_tags[:length])
            for trees, word_tags, length in zip(best, tags, lengths.tolist(), strict=True)
        ]

    def _named(self, spans: Sequence[tuple[int, int, int]]) -> list[Span]:
        return [(start, stop, self.labels[label]) for start, stop, label in spans]

    def _tags_of(self, words: Tensor) -> list[list[str]]:
        """The most probable tag of each word, (B, N, D); XX without a head for tags."""
        if not self.tags:
            return [[WORD] * words.size(1)] * len(words)
        tag_ids = self.module.scores_from("tags", words).argmax(-1).tolist()
        return [[self.tags[i] for i in row] for row in tag_ids]

    # ---- scores

    def evaluate(self, rows: RowReader | Iterable[Any], *, columns: Sequence[Any] = ()) -> Scores:
        """The F1 of labelled brackets, and the accuracy of tags; see `bracket_score`.

        rows: of `read_treebank`, or trees, or brackets.
        """
        gold = list(self.opened(rows, columns))
        predicted_trees = self._trees([Sentence.of_tree(tree) for tree in gold])
        tagged = Accuracy()
        for predicted, tree in zip(predicted_trees, gold, strict=True):
            tagged.add(predicted.tags, tree.tags)
        tag_scores = [tagged.result()] if self.tags else []
        return Scores([bracket_score(predicted_trees, gold), *tag_scores])

    def sample(self, row: ConstituencyTree) -> tuple[Any, str, str]:
        words = row.tags if self.inputs == "tags" else row.words
        return list(words), shown_words(row), str(row)


def _with_heads(
    model: EncoderWithHeads, labels: Sequence[str], tags: Sequence[str]
) -> EncoderWithHeads:
    """The same encoder with a new head for spans, and one for tags where there are any."""
    heads = dict(model.with_new_head("chart", len(labels)).heads)
    if tags:
        heads |= dict(model.with_new_head("tags", len(tags)).heads)
    return EncoderWithHeads(model.encoder, heads).train(model.training)


def _batches(lengths: Sequence[int], n_best: int) -> Iterator[list[int]]:
    """The indices of sentences of similar lengths, few enough for charts of `n_best` trees."""
    batch: list[int] = []
    most_spans = min(SPANS_AT_ONCE, (MOST_RANKED // n_best) ** 2)
    for number in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if (len(batch) + 1) * lengths[number] ** 2 > most_spans and batch:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


Ranked = list[list[tuple[float, list[tuple[int, int, int]]]]]  # of each sentence scores and spans


def _best(scores: Tensor, lengths: Tensor) -> Ranked:
    """The best tree of each sentence, from the scores (B, N, N, O)."""
    best, label = scores.max(-1)
    values, chosen = chart.best_trees(best, lengths)
    ranked: Ranked = [[(value, [])] for value in values.tolist()]
    cells = chosen.nonzero()
    names = label[chosen].tolist()
    for (row, start, width), name in zip(cells.tolist(), names, strict=True):
        ranked[row][0][1].append((start, start + width + 1, name))
    return ranked


def _several(scores: Tensor, lengths: Tensor, n_best: int) -> Ranked:
    """The best trees of each sentence, from the scores (B, N, N, O)."""
    ranked = chart.k_best_trees(scores, lengths, n_best)
    return [[(tree.score, tree.spans) for tree in trees] for trees in ranked]
