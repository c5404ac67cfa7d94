"""The two heads that find answers in a context: what they score, learn and predict; and the answers
of the best spans over all windows.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data import Question
from regard.data.encoder_inputs import EncodedContext, InputBatch
from regard.layers.task_heads import SpanSearchHead
from regard.metrics import SQuAD, SQuAD2
from regard.models.encoder_with_heads import EncoderWithHeads
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


class AnswerHead(Protocol):
    """A head that finds answers.

    `contexts` (B, 2): the position of the first token of each context, and its number of tokens.

    kind: the name of the head in `EncoderWithHeads.heads`.
    candidates: the class that collects the spans of all windows.
    """

    kind: ClassVar[str]
    candidates: ClassVar[type[SpanCandidates]]

    def loss(
        self, hidden: Tensor, batch: InputBatch, contexts: Tensor, spans: Tensor
    ) -> tuple[Tensor, int]:
        """The sum of the losses of windows, in nats, and their number.

        hidden: (B, T, D) hidden states.  spans: (B, 2) the first and the last token of the answer,
        both 0 where the window has none.
        """
        ...

    def scores(self, hidden: Tensor, batch: InputBatch, contexts: Tensor) -> Tensor:
        """The scores (B, N, O) that `best` needs; each head has its own N and O."""
        ...

    def best(
        self, scores: Tensor, contexts: Tensor, *, longest: int, most: int
    ) -> tuple[list[list[ScoredSpan]], list[float]]:
        """The `most` best spans of each window, of at most `longest` tokens of the context, and its
        score of no answer.
        """
        ...

    def are_finite(self, scores: Tensor, batch: InputBatch) -> Tensor:
        """(B,) bool: whether the scores of a window are finite."""
        ...


def answer_head(model: EncoderWithHeads) -> AnswerHead:
    """The `AnswerHead` of a model."""
    return (SpanSearch if SpanSearch.kind in model.heads else SpanLogits)(model)


@dataclass(frozen=True)
class SpanLogits:
    """A classifier of the first and of the last token; no answer is the span at the first token."""

    model: EncoderWithHeads
    kind: ClassVar[str] = "span"
    candidates: ClassVar[type[SpanCandidates]] = SpanCandidates

    def loss(
        self, hidden: Tensor, batch: InputBatch, contexts: Tensor, spans: Tensor
    ) -> tuple[Tensor, int]:
        """The mean of both cross-entropies over all tokens of a window."""
        scores = self.scores(hidden, batch, contexts).float()
        inside = scores.masked_fill(~batch.texts.keep[:, :, None], -torch.inf)
        return F.cross_entropy(inside, spans, reduction="sum") / 2, len(batch)

    def scores(self, hidden: Tensor, batch: InputBatch, contexts: Tensor) -> Tensor:
        """(B, T, 2)."""
        return batch.texts.pad(self.model.scores_from(self.kind, hidden))

    def best(
        self, scores: Tensor, contexts: Tensor, *, longest: int, most: int
    ) -> tuple[list[list[ScoredSpan]], list[float]]:
        spans = best_spans(scores, *contexts.unbind(-1), longest=longest, most=most)
        return spans, scores[:, 0].sum(-1).tolist()

    def are_finite(self, scores: Tensor, batch: InputBatch) -> Tensor:
        return (scores.isfinite().all(-1) | ~batch.texts.keep).all(1)


@dataclass(frozen=True)
class SpanSearch:
    """A search for last tokens from the most probable first ones; <cls>, the last token of a
    window, stands for no answer, which has a logit of its own.
    """

    model: EncoderWithHeads
    kind: ClassVar[str] = "span_search"
    candidates: ClassVar[type[SpanCandidates]] = SearchedCandidates

    @property
    def head(self) -> SpanSearchHead:
        """That of the model."""
        head = self.model.heads[self.kind]
        assert isinstance(head, SpanSearchHead)
        return head

    def loss(
        self, hidden: Tensor, batch: InputBatch, contexts: Tensor, spans: Tensor
    ) -> tuple[Tensor, int]:
        """See `AnswerHead` and `SpanSearchHead.loss`."""
        last = batch.texts.lengths - 1
        spans = torch.where(spans[:, 1:] > 0, spans, last[:, None])
        return self.head.loss(batch.texts.pad(hidden), spans, _allowed(batch, contexts), last)

    def scores(self, hidden: Tensor, batch: InputBatch, contexts: Tensor) -> Tensor:
        """See `AnswerHead`: spans as (score, first, last) in (B, 1 + S * E, 3), the logit of no
        answer as the first of them.
        """
        padded, last = batch.texts.pad(hidden), batch.texts.lengths - 1
        beams = self.head.search(padded, _allowed(batch, contexts), last)
        scores = beams.start_scores[..., None] + beams.end_scores  # (B, S, E)
        firsts = beams.starts[..., None].expand_as(scores).to(scores)
        spans = torch.stack([scores, firsts, beams.ends.to(scores)], -1).flatten(1, 2)
        return torch.cat([F.pad(beams.no_answer[:, None, None], (0, 2)), spans], 1)

    def best(
        self, scores: Tensor, contexts: Tensor, *, longest: int, most: int
    ) -> tuple[list[list[ScoredSpan]], list[float]]:
        """Log p(a) + log p(b | a) of the spans that lie in the context."""
        ranked = []
        for (begin, count), row in zip(contexts.tolist(), scores[:, 1:].tolist(), strict=True):
            spans = [
                (score, int(a), int(b))
                for score, a, b in row
                if begin <= a <= b < min(a + longest, begin + count)
            ]
            ranked.append(sorted(spans, key=lambda span: (-span[0], span[1], span[2]))[:most])
        return ranked, scores[:, 0, 0].tolist()

    def are_finite(self, scores: Tensor, batch: InputBatch) -> Tensor:
        """Of the first token and its best last one; others may be impossible."""
        return scores[:, :2, 0].isfinite().all(1)


def _allowed(batch: InputBatch, contexts: Tensor) -> Tensor:
    """(B, T) the tokens of which answers consist, and the last token of each window."""
    positions = torch.arange(batch.texts.width, device=batch.texts.ids.device)
    begin, count = contexts[:, :1], contexts[:, 1:]
    inside = (positions >= begin) & (positions < begin + count)
    return inside | (positions == batch.texts.lengths[:, None] - 1)
