"""The answer to a question as a span of its context, or that the context has no answer.

The head scores each token as the first and as the last of the answer; "no answer" is the span at
the first token, [CLS] (Devlin et al. 2019, sections 4.2 and 4.3). Long contexts are read in
overlapping windows, whose spans are compared by their scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import Question, RowReader, encoder_inputs, read_squad
from regard.data.batches import moved
from regard.data.readers import ReadReport
from regard.errors import DataError, TextError, TextTooLong, check_at_least, shown
from regard.metrics import Scores, SQuAD, SQuAD2
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.recipe import Options
from regard.tasks import encoding
from regard.tasks.batching import TooLong, check_too_long
from regard.tasks.encoder_training import FittedThreshold, headed
from regard.tasks.inputs import as_list, as_strings, checked_text, pairs_of, warn_of_truncation
from regard.tasks.sections import EncoderRecipe, RowsData
from regard.tasks.task import PAIR, Prediction, Predicts
from regard.text import Tokenizer

ALWAYS = 1.0  # the threshold with which every question is answered

ScoredSpan = tuple[float, int, int]  # score, first and last token


@dataclass(frozen=True)
class Passage:
    """A part of the context: `text` is `context[start:end]`; a larger score is better."""

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class SpanPrediction(Prediction):
    """The answer, or "" where there is none.

    no_answer: the probability that there is none.  best: the best passages, best first, whatever
        that probability is.
    """

    text: str
    no_answer: float
    best: tuple[Passage, ...] = field(default=())


def best_spans(
    scores: Tensor, first: Tensor, counts: Tensor, *, longest: int, most: int
) -> list[list[ScoredSpan]]:
    """The `most` best spans of at most `longest` tokens in each row, best first.

    scores: (B, T, 2) of the first and of the last token of a span; the span's score is their sum.
    first, counts: (B,) the position of the context in each row, and its tokens; spans lie in it.
        Of equal spans the one that begins earlier comes first, then the shorter; the spans of a row
        do not depend on the other rows.
    """
    width = scores.size(1)
    positions = torch.arange(width) - first[:, None]
    outside = (positions < 0) | (positions >= counts[:, None])
    begins, ends = scores.masked_fill(outside[:, :, None], -math.inf).unbind(-1)  # (B, T) each
    longest = min(longest, width)
    ends = F.pad(ends, (0, longest - 1), value=-math.inf).unfold(1, longest, 1)  # (B, T, L)
    both = (begins[:, :, None] + ends).flatten(1)  # (B, T, L) -> (B, T * L)
    least = both.topk(min(most, both.size(1)))[0][:, -1:]
    spans = []
    for row, bar in zip(both, least, strict=True):
        # `most` spans, and more where others equal the last, in the order of their positions.
        where = ((row >= bar) & (row > -math.inf)).nonzero()[:, 0]
        values, order = row[where].sort(descending=True, stable=True)
        places = where[order[:most]].tolist()
        spans.append(
            [
                (value, at // longest, at // longest + at % longest)
                for value, at in zip(values[:most].tolist(), places, strict=True)
            ]
        )
    return spans


@dataclass
class SpanCandidates:
    """The best spans of the windows of one context so far, and the score of no answer.

    nothing: the least score of all windows for the span at the first token, which means that there
        is no answer in them; one window with an answer is enough.
    """

    most: int
    spans: dict[tuple[int, int], float] = field(default_factory=dict)
    nothing: float = math.inf

    def add(self, spans: Iterable[ScoredSpan], nothing: float) -> None:
        """Add the best spans of one window; a span of two windows has the larger of its scores."""
        for score, first, last in spans:
            self.spans[first, last] = max(score, self.spans.get((first, last), -math.inf))
        self.nothing = min(self.nothing, nothing)

    def best(self) -> list[ScoredSpan]:
        """The best spans, best first; equal ones in order, the shorter first."""
        ranked = sorted((-score, first, last) for (first, last), score in self.spans.items())
        return [(-score, first, last) for score, first, last in ranked[: self.most]]

    def no_answer(self) -> float:
        """The probability of no answer; 1 where there is no span at all."""
        odds = max(self.spans.values(), default=-math.inf) - self.nothing
        return 1 / (1 + math.exp(odds)) if odds < 700 else 0.0

    def answer(self, context: encoder_inputs.EncodedContext, threshold: float) -> SpanPrediction:
        """The answer; "" where the probability of no answer is above the threshold."""
        passages = []
        for score, first, last in self.best():
            start, end = context.char_span(first, last)
            if start < end:  # white space alone is no answer
                passages.append(Passage(context.text[start:end], start, end, score))
        no_answer = self.no_answer()
        answered = passages and no_answer <= threshold
        return SpanPrediction(passages[0].text if answered else "", no_answer, tuple(passages))


def score_of(
    predictions: Sequence[SpanPrediction], questions: Sequence[Question], threshold: float
) -> Any:
    """F1 and exact match, of version 2.0 where some questions have no answer."""
    answers = [[answer.text for answer in question.answers] for question in questions]
    if all(answers):
        metric: Any = SQuAD()
        metric.add([prediction.text for prediction in predictions], answers)
    else:
        metric = SQuAD2(threshold)
        best = [prediction.best[0].text if prediction.best else "" for prediction in predictions]
        metric.add(best, answers, [prediction.no_answer for prediction in predictions])
    return metric.result()


def best_threshold(predictions: Sequence[SpanPrediction], questions: Sequence[Question]) -> float:
    """The largest probability of no answer with which a question is answered, for the best F1."""
    score = score_of(predictions, questions, ALWAYS)
    return score.details.get("best_f1_thresh", ALWAYS)


CHUNK = 128  # questions whose windows are held at once
PICTURED = 24  # words of a context in a report's picture


class QuestionsData(RowsData):
    """[data]: files in SQuAD's format."""

    max_length: int = Field(default=384, ge=16)
    """The most tokens of a window with its question; never more than the model reads."""
    doc_stride: int = Field(default=128, ge=0)
    """Tokens that neighbouring windows of a context share, at most half of their capacity."""
    max_question_length: int = Field(default=64, ge=1)
    """The most tokens of a question; longer ones are truncated, and counted. At most half of a
    window."""
    on_misaligned: Literal["error", "skip", "fix"] = "error"
    """What happens to answers that are not where their start says: see `read_squad`."""

    def read(self, source: Any, part: str) -> RowReader:
        """All examples of a file."""
        return read_squad(source, on_misaligned=self.on_misaligned)

    def texts(self) -> Iterator[str]:
        """Each training context once, and all questions, from which a tokenizer learns."""
        seen: set[str] = set()
        for question in self.records("train"):
            if question.context not in seen:
                seen.add(question.context)
                yield question.context
            yield question.question


class AnswersSection(Options):
    """[answers]"""

    max_tokens: int = Field(default=30, ge=1)
    """Tokens of an answer."""
    threshold: float | None = Field(default=None, ge=0, le=1)
    """A question gets no answer where the probability of no answer is larger. None: every question
    is answered if all of the training data have answers; otherwise the threshold is the best for
    F1 on the validation data, and 0.5 where there are none."""


class QuestionsRecipe(EncoderRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: QuestionsData
    answers: AnswersSection = AnswersSection()


class QuestionAnswerer(encoding.EncoderTask):
    """The span of a context that answers a question.

    threshold: the probability of no answer above which a question gets none; 1: never.
    The other options are those of `QuestionsData` and `AnswersSection`.
    """

    name = "question-answering"
    head = "span"
    pipeline = "question-answering"
    file_ending = "json"
    prediction_type = SpanPrediction
    predict: Predicts[tuple[str, str], str, SpanPrediction]
    read_records = staticmethod(read_squad)
    input_columns = PAIR
    Recipe = QuestionsRecipe
    items = "windows"
    limited = "question"
    goal = ("f1", "max")
    metric_names = ("f1", "exact")

    def __init__(
        self,
        module: EncoderWithHeads,
        tokenizer: Tokenizer,
        *,
        max_length: int | None = 384,
        doc_stride: int = 128,
        max_question_length: int = 64,
        answer_tokens: int = 30,
        threshold: float = ALWAYS,
    ):
        super().__init__(module, tokenizer, max_length=max_length or 384)
        assert self.input_format.max_length is not None
        capacity = self.input_format.max_length - self.input_format.template.special_count(2)
        self.doc_stride = doc_stride
        self.max_question_length = min(max_question_length, capacity // 2)
        self.answer_tokens, self.threshold = answer_tokens, threshold
        self._fitted = FittedThreshold()

    # ---- from a recipe

    @classmethod
    def from_recipe(cls, recipe: QuestionsRecipe, model: nn.Module, tokenizer: Tokenizer) -> Self:
        """The task with its data and a head for spans, ready to be trained.

        Raises:
            ConfigError: the model is not an encoder.
            DataError: no answer has a token.
        """
        data, answers = recipe.data, recipe.answers
        options = {"answer_tokens": answers.max_tokens, **cls.options_in(recipe)}
        task = cls(headed(model).with_head(cls.head, 2), tokenizer, **options)
        train = task._train_part(data.records("train"))
        valid = None if data.valid is None else task._valid_part(data.records("valid"))
        task.parts = encoding.Parts(train, valid, data, recipe.seed)
        if answers.threshold is not None:
            task.threshold = answers.threshold
        elif task._impossible:
            task.threshold = 0.5
            task._fitted.used = valid is not None
        return task

    def _train_part(self, records: RowReader) -> encoding.Part:
        """All windows of all questions, each with the positions of the first and the last token of
        its answer.

        Of several answers the first is learned. The targets of no answer are at the first token.

        Raises:
            DataError: no question is left.
        """
        windows: list[encoder_inputs.ContextWindows] = []
        positions: list[np.ndarray] = []
        self._impossible = False
        numbered, encode = records.numbered(), self._context_encoder()
        while chunk := list(islice(numbered, CHUNK)):
            lines, questions = [line for line, _ in chunk], [question for _, question in chunk]
            contexts = [encode(question.context) for question in questions]
            answer_spans = [
                context.token_span(*question.answers[0]) if question.answers else None
                for question, context in zip(questions, contexts, strict=True)
            ]
            self._impossible |= any(question.impossible for question in questions)
            self._note_cut(records.report, questions, lines)
            answerable = []
            for i, question in enumerate(questions):
                if question.impossible or answer_spans[i]:
                    answerable.append(i)
                else:
                    records.report.kept -= 1
                    records.report.note("an answer without tokens, question left out", lines[i])
            chunk_windows = self._windows(
                [questions[i] for i in answerable], [contexts[i] for i in answerable]
            )
            windows.append(chunk_windows)
            positions.append(chunk_windows.span_positions([answer_spans[i] for i in answerable]))
        if not records.report.kept:
            raise DataError(records.name, None, f"no question is left. {records.report}.")
        targets = torch.from_numpy(np.concatenate(positions))
        return encoding.Part(
            encoder_inputs.concatenated([part.inputs for part in windows]), targets, records.report
        )

    def _valid_part(self, records: RowReader) -> encoding.Part:
        """The validation questions; their rows are encoded when they are needed."""
        numbered = list(records.numbered())
        questions = [question for _, question in numbered]
        self._note_cut(records.report, questions, [line for line, _ in numbered])
        return encoding.Part(encoder_inputs.EncodedInputs.of([]), questions, records.report)

    def _note_cut(
        self, report: ReadReport, questions: Sequence[Question], lines: Sequence[int]
    ) -> None:
        for i in self._long(questions):
            report.note(
                f"question longer than {self.max_question_length} tokens, truncated", lines[i]
            )

    # ---- training

    def loss(
        self, scores: Tensor, batch: encoder_inputs.InputBatch, targets: Tensor
    ) -> tuple[Tensor, int]:
        """The sum of the losses of windows, in nats, and their number: of a window the mean of both
        cross-entropies over all of its tokens.

        scores: (B, T, 2).  targets: (N, 2), of all windows the first and the last token of the
        answer, both 0 where the window has none.
        """
        spans = moved(targets[batch.numbers.cpu()], scores.device)  # (B, 2)
        inside = scores.masked_fill(~batch.texts.keep[:, :, None], -torch.inf)
        return F.cross_entropy(inside, spans, reduction="sum") / 2, len(batch)

    def measured(self, valid: encoding.Part) -> dict[str, float]:
        """F1 and exact match in percent on the validation data."""
        questions: list[Question] = valid.targets
        predictions = list(self._answered(questions, "truncate"))
        if self._fitted.used:
            best = best_threshold(predictions, questions)
            self.threshold = self._fitted.keep(self.module.heads[self.head], best)
        score = score_of(predictions, questions, self.threshold)
        return {"f1": score.value, "exact": score.exact}

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        if self._fitted.used:
            self.threshold = self._fitted.fit(self.module.heads[self.head], self.validate)
        return super().settings()

    # ---- predictions

    def answer(self, question: Any, context: Any) -> Any:
        """The answer to a question from a context, with the 20 best spans; or a list of answers."""
        return self.predict(pairs_of(question, context), return_proba=True, n_best=20)

    def _predictions(
        self, texts: Sequence[Any], *, too_long: TooLong = "error", n_best: int = 1
    ) -> list[SpanPrediction]:
        """The answers to pairs (question, context), each with the `n_best` best spans.

        Raises:
            ConfigError: `n_best` is below 1.
            RegardError: an item is not a pair; a question is longer than `max_question_length` and
                `too_long` is "error".
        """
        check_at_least(1, n_best=n_best)
        return list(self._answered(self.checked(texts), too_long, n_best))

    def checked(self, texts: Any) -> list[Any]:
        """Questions with their contexts."""
        return [_question(index, pair) for index, pair in enumerate(as_list(texts))]

    def over_limit(self, texts: Sequence[Any]) -> dict[int, int]:
        """The indices of pairs with a question that is too long, and its tokens.

        Contexts of any length are read, in windows.
        """
        return self._long(self.checked(texts))

    def token_limit(self, **options: Any) -> int | None:
        """The most tokens of a question."""
        return self.max_question_length

    def _long(self, questions: Sequence[Question]) -> dict[int, int]:
        long: dict[int, int] = {}
        for start in range(0, len(questions), CHUNK):
            chunk = questions[start : start + CHUNK]
            ids = self.tokenizer.encode_many([question.question for question in chunk])
            counts = enumerate(map(len, ids), start)
            long |= {i: count for i, count in counts if count > self.max_question_length}
        return long

    # ---- windows

    def _answered(
        self, questions: Sequence[Question], too_long: TooLong, n_best: int = 1
    ) -> Iterator[SpanPrediction]:
        """The answers in order; memory does not grow with the number of questions."""
        check_too_long(too_long)
        if too_long == "error" and (long := self._long(questions)):
            first = min(long)
            problem = f"has {long[first]} tokens, but at most {self.max_question_length} are read."
            raise TextTooLong(first, problem, what="Question")
        encode = self._context_encoder()
        for start in range(0, len(questions), CHUNK):
            chunk = questions[start : start + CHUNK]
            contexts = [encode(question.context) for question in chunk]
            candidates = [SpanCandidates(n_best) for _ in chunk]
            self._search(self._windows(chunk, contexts), candidates, start)
            for context, spans in zip(contexts, candidates, strict=True):
                yield spans.answer(context, self.threshold)

    def _context_encoder(self) -> Callable[[str], encoder_inputs.EncodedContext]:
        """Encodes contexts; questions about one context are neighbours, so it is encoded once."""
        return lru_cache(CHUNK)(
            lambda text: encoder_inputs.EncodedContext.of(text, self.tokenizer.encode(text))
        )

    def _search(
        self,
        windows: encoder_inputs.ContextWindows,
        candidates: Sequence[SpanCandidates],
        before: int,
    ) -> None:
        """Add the best spans of all windows to their questions; `before` questions came first."""
        limits = {"longest": self.answer_tokens, "most": candidates[0].most}
        first, counts = torch.from_numpy(windows.input_starts), torch.from_numpy(windows.counts)
        for batch, scores in self.passes(windows.inputs, (windows.questions + before).tolist()):
            rows = batch.numbers.tolist()
            spans = best_spans(scores, first[rows], counts[rows], **limits)
            no_answer_scores = scores[:, 0].sum(-1).tolist()
            for row, ranked, no_answer in zip(rows, spans, no_answer_scores, strict=True):
                shift = int(windows.context_starts[row] - windows.input_starts[row])
                in_context = [(score, a + shift, b + shift) for score, a, b in ranked]
                candidates[windows.questions[row]].add(in_context, no_answer)

    def _windows(
        self, questions: Sequence[Question], contexts: Sequence[encoder_inputs.EncodedContext]
    ) -> encoder_inputs.ContextWindows:
        # Byte-level tokens include the space before a word; before the question there is none.
        ids = self.tokenizer.encode_many([question.question.lstrip() for question in questions])
        truncated = [question_ids[: self.max_question_length] for question_ids in ids]
        return encoder_inputs.ContextWindows.of(
            truncated, contexts, self.input_format, self.doc_stride
        )

    # ---- scores

    def evaluate(
        self, rows: RowReader | Iterable[Any], *, columns: Sequence[int | str] = ()
    ) -> Scores:
        """F1 and exact match of the answers.

        rows: of `read_squad`, or records as it reads them. Where some questions have no answer, the
            score is that of SQuAD 2.0, with the best thresholds.
        """
        questions = list(self.opened(rows, columns))
        if long := self._long(questions):
            limit = self.max_question_length
            warn_of_truncation(len(long), len(questions), "questions", limit)
        answers = list(self._answered(questions, "truncate"))
        return Scores([score_of(answers, questions, self.threshold)])

    def sample(self, row: Question) -> tuple[Any, str, str]:
        answer = row.answers[0].text if row.answers else ""
        return (row.question, row.context), row.question, answer

    def attention_inputs(self, recipe: QuestionsRecipe) -> Iterable[Any]:
        """Questions and the beginnings of their contexts: whole ones are too large for a page."""
        rows = recipe.data.samples()
        return [(row.question, " ".join(row.context.split()[:PICTURED])) for row in rows]


def _question(index: int, pair: Any) -> Question:
    texts = as_strings(pair) or ()
    if len(texts) != 2:
        problem = f"must be a question and its context, but is {shown(pair)}."
        raise TextError(index, problem, "Give pairs of two texts, (question, context).")
    question, context = (checked_text(text, index) for text in texts)
    return Question(str(index), context=context, question=question)
