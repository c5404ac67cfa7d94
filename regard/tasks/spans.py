"""From the scores of first and last tokens to answers: the best spans over all windows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data import Question
from regard.data.windows import EncodedContext
from regard.metrics import SQuAD, SQuAD2
from regard.tasks.predictions import Prediction

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

    @property
    def answer_logit(self) -> float:
        """Of an answer, where there is a span: its best one is compared with no answer."""
        return max(self.spans.values()) - self.nothing

    def no_answer(self) -> float:
        """The probability of no answer; 1 where there is no span at all."""
        odds = self.answer_logit if self.spans else -math.inf
        return 1 / (1 + math.exp(odds)) if odds < 700 else 0.0

    def answer(self, context: EncodedContext, threshold: float) -> SpanPrediction:
        """The answer; "" where the probability of no answer is above the threshold."""
        passages = []
        for score, first, last in self.best():
            start, end = context.char_span(first, last)
            if start < end:  # white space alone is no answer
                passages.append(Passage(context.text[start:end], start, end, score))
        no_answer = self.no_answer()
        answered = passages and no_answer <= threshold
        return SpanPrediction(passages[0].text if answered else "", no_answer, tuple(passages))


@dataclass
class SearchedCandidates(SpanCandidates):
    """The same where no answer has a logit of its own, `nothing`: the least of all windows."""

    @property
    def answer_logit(self) -> float:
        """Spans are not compared with no answer."""
        return -self.nothing


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
