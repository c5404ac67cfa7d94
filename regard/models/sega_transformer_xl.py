"""Segatron-XL: "Segatron: Segment-Aware Transformer for Language Modeling" (Bai et al. 2021).

Transformer-XL that also knows how many sentences and paragraphs lie between a query and a key. Each
of the three distances has a third of the vector that W_r reads (section 2.2):

    r_ij = [sinusoid(i - j); sinusoid(sentence_i - sentence_j); sinusoid(paragraph_i - paragraph_j)]

Sentences and paragraphs are numbered through the whole text.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.carried_memory import CarriedMemory, DistanceKeys
from regard.attention.relative_attention import (
    ByDistance,
    Distances,
    DistanceScores,
    relative_scores,
)
from regard.layers.positions import sinusoid
from regard.models.config import TokenIds
from regard.models.protocols import Output
from regard.models.transformer_xl import TransformerXL, TransformerXLConfig


@dataclass(frozen=True)
class SegaTransformerXLConfig(TransformerXLConfig):
    """sentence_ends, paragraph_ends: the tokens that end a sentence or a paragraph; `eos` ends a
    paragraph, and the end of a paragraph ends a sentence. They are used where a batch has no
    segment numbers.

    relation: the paper's; or that of the released program, for weights that were trained with it:
        a row of sinusoid(sentence_last - sentence_j) is shifted as the distances of tokens are, so
        that the number which query i of T reads for key j is that of key j + T - 1 - i.

    The others are those of `TransformerXLConfig`.
    """

    sentence_ends: TokenIds = ()
    paragraph_ends: TokenIds = ()
    relation: Literal["paper", "released"] = "paper"


SIZES = {
    "base": dict(d_model=410, d_ff=2100, heads=10, head_dim=41, layers=16, memory_length=150),
    "large": dict(
        d_model=1024, d_ff=4096, heads=16, head_dim=64, layers=18, divisor=4, memory_length=384,
        dropout=0.2,
    ),
}  # fmt: skip


def widths(d_model: int) -> tuple[int, int, int]:
    """Of the vectors of tokens, sentences and paragraphs: about a third each, all even."""
    third = d_model // 3 + d_model // 3 % 2
    return third, third, d_model - 2 * third


@dataclass
class SegaMemory(CarriedMemory):
    """segment_numbers: (B, C, 2), the numbers of the sentence and the paragraph of each position.

    following: (B, C, 2), those of the token after it.
    """

    segment_numbers: Tensor = field(kw_only=True)
    following: Tensor = field(kw_only=True)

    BY_POSITION: ClassVar[tuple[str, ...]] = ("hidden", "segment_numbers", "following")

    def write_segment_numbers(self, numbers: Tensor, ends: Tensor) -> None:
        """Store the numbers of the next tokens, (B, T, 2), and whether they end, (B, T, 2)."""
        segment = slice(self.end, self.end + numbers.size(1))
        self.segment_numbers[:, segment] = numbers
        self.following[:, segment] = numbers + ends

    @property
    def next_numbers(self) -> Tensor:
        """The numbers of the next token, (B, 2)."""
        if not self.end:
            return self.following.new_zeros(self.lengths.size(0), 2)
        return self.following[:, self.end - 1]

    def read_segment_numbers(self, count: int) -> Tensor:
        """Of the positions that `count` queries read, their own included: (B, S, 2)."""
        return self.segment_numbers[:, self.end - self.count : self.end + count]


@dataclass(frozen=True)
class SegmentDistances:
    """Distances in tokens, sentences and paragraphs, as in the paper.

    tokens: the vectors of distances S - 1 ... 0, (S, D).
    others: for sentences and for paragraphs the vectors of the distances 0 ... N - 1, (N, D), and
        the distance of each query and key, (B, 1, T, S).
    """

    tokens: Tensor
    others: tuple[tuple[Tensor, Tensor], ...]

    def scores(
        self, query: Tensor, position_bias: Tensor, project: Callable[[Tensor], Tensor]
    ) -> Tensor:
        total = relative_scores(query, position_bias, project(self.tokens))
        for vectors, rows in self.others:
            total = total + relative_scores(query, position_bias, project(vectors), rows)
        return total


class SegaTransformerXL(TransformerXL):
    """Segatron-XL, a `LanguageModel` and an `Encoder`."""

    Config: type = SegaTransformerXLConfig
    SIZES = SIZES
    PUBLISHED: dict[str, Any] = {}  # noqa: RUF012

    def forward(
        self, ids: Tensor, state: CarriedMemory | None = None, segment_numbers: Tensor | None = None
    ) -> Output:
        """See `TransformerXL.forward`.

        Args:
            segment_numbers: those of the sentence and the paragraph of each token, (B, T, 2);
                None: they are counted from the tokens that end one.
        """
        memory = self._memory_for(ids, state)
        if segment_numbers is not None:
            memory.write_segment_numbers(segment_numbers, self._ends(ids))
        *_, hidden = self._layers(ids, memory)
        return Output(hidden, memory.advance(ids.size(1)))

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> SegaMemory:
        """See `TransformerXL.empty`; the first token is in sentence 0 of paragraph 0."""
        base = super().empty(sequences, dtype)
        none = base.lengths.new_zeros(sequences, base.end, 2)
        return SegaMemory(**vars(base), segment_numbers=none, following=none.clone())

    def _memory_for(self, ids: Tensor, state: CarriedMemory | None) -> SegaMemory:
        memory = super()._memory_for(ids, state)
        assert isinstance(memory, SegaMemory)
        ends = self._ends(ids)
        memory.write_segment_numbers(memory.next_numbers[:, None] + ends.cumsum(1) - ends, ends)
        return memory

    def _ends(self, ids: Tensor) -> Tensor:
        """Whether each token ends a sentence, and a paragraph: (B, T) -> (B, T, 2)."""
        config = self.config
        paragraph = [*config.paragraph_ends, *([] if config.eos is None else [config.eos])]
        sentence = [*config.sentence_ends, *paragraph]
        return torch.stack(
            [torch.isin(ids, ids.new_tensor(ends)).long() for ends in (sentence, paragraph)], -1
        )

    def _distance_keys(self, memory: CarriedMemory, count: int) -> DistanceKeys:
        return memory.distances  # the numbers differ from text to text: none are kept

    def _distances(self, memory: CarriedMemory, count: int) -> list[Distances]:
        assert isinstance(memory, SegaMemory)
        numbers, like = memory.read_segment_numbers(count), memory.hidden  # (B, S, 2)
        scores_of = self._released if self.config.relation == "released" else self._paper
        return [scores_of(numbers, count, like)] * self.config.layers

    def _paper(self, numbers: Tensor, count: int, like: Tensor) -> DistanceScores:
        total, config = numbers.size(1), self.config
        position = torch.arange(total - 1, -1, -1, device=numbers.device)
        others = []
        for part in (0, 1):
            of_part = numbers[..., part]
            distance = of_part[:, total - count :, None] - of_part[:, None]  # (B, T, S)
            distance = distance.clamp(min=0, max=config.max_distance)
            # A tensor on "meta", for estimates, has no largest number: there may be one a position.
            has_values = distance.numel() and not distance.is_meta
            farthest = int(distance.max()) if has_values else total - 1
            distances = torch.arange(farthest + 1, device=numbers.device)
            vectors = self.dropout(self._placed(distances, 1 + part, like))
            others.append((vectors, distance[:, None]))
        return SegmentDistances(self.dropout(self._placed(position, 0, like)), tuple(others))

    def _released(self, numbers: Tensor, count: int, like: Tensor) -> DistanceScores:
        position = torch.arange(numbers.size(1) - 1, -1, -1, device=numbers.device)
        to_last = numbers[:, -1:] - numbers  # (B, S, 2); the last numbers are the greatest
        vectors = self._placed(position, 0, like)[None]
        for part in (0, 1):
            vectors = vectors + self._placed(to_last[..., part], 1 + part, like)
        return ByDistance(self.dropout(vectors))

    def _placed(self, distances: Tensor, part: int, like: Tensor) -> Tensor:
        """Vectors of distances of one kind in their third, zeros elsewhere: (...,) -> (..., D)."""
        limit, sizes = self.config.max_distance, widths(self.config.d_model)
        distances = distances if limit is None else distances.clamp(max=limit)
        before, after = sum(sizes[:part]), sum(sizes[part + 1 :])
        return F.pad(sinusoid(distances, sizes[part]), (before, after)).to(like.dtype)
