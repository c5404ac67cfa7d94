"""The two heads that find answers in a context: what they score, learn and predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.encoder_inputs import InputBatch
from regard.layers.span_search import SpanSearchHead
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks.spans import ScoredSpan, SearchedCandidates, SpanCandidates, best_spans


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
