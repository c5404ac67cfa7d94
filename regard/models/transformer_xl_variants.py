"""What became of Transformer-XL: the Compressive Transformer and Segatron-XL."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import ops
from regard.attention.carried_memory import CarriedMemory, CompressedMemory, DistanceKeys
from regard.attention.relative import relative_scores
from regard.attention.relative_attention import Distances
from regard.errors import ConfigError
from regard.layers.linear import Linear
from regard.layers.positions import sinusoid
from regard.models.config import Size, TokenIds
from regard.models.protocols import Output
from regard.models.transformer_xl import TransformerXL, TransformerXLConfig, init_transformer_xl

# -------------------------------------------------------------------------- Compressive Transformer
#
# Compressive Transformer: "Compressive Transformers for Long-Range Sequence Modelling" (Rae et al.
# 2019).
#
# Transformer-XL whose oldest positions are not dropped: each layer makes one slot of c of them and
# keeps N such slots, so that a token sees c N positions more for N keys more. Slots count as
# positions in distances. What is compressed has no gradient, as the memory has none; a convolution
# learns from the attention-reconstruction loss alone (section 3.2, algorithm 2):
#
#     sum over layers of |A(h, old) - A(h, f(old))|_2,   A(h, m) = softmax((q + u) k^T / sqrt(K)) v
#
# with q of the layer's input h, k and v of m: the content part of the layer's own attention, over
# the positions that are compressed after this segment, and over the slots that take their place. h,
# old, and the weights of the layer get no gradient from it: f alone does. The norm is that of each
# query's vector, all heads together; the loss is its mean over the tokens of the batch.


LOSS = "reconstruction"


@dataclass(frozen=True)
class CompressiveTransformerConfig(TransformerXLConfig):
    """compressed_length: N, the slots of compressed positions that a segment reads.

    compression_rate: c, the positions of a slot.

    The others are those of `TransformerXLConfig`; the memory starts empty.
    """

    compressed_length: Size = 150
    compression_rate: Size = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.same_length:
            raise ConfigError("`same_length` must be false: compressed slots hold several tokens.")
        if self.memory_start != "empty":
            raise ConfigError('`memory_start` must be "empty" where the memory is compressed.')


class StridedConvolution(nn.Module):
    """A convolution whose kernel and stride are c: (..., c, D) -> (..., D).

    Windows of such a convolution do not overlap, so it is one matrix from c D to D.
    """

    def __init__(self, d_model: int, rate: int):
        super().__init__()
        self.kernel = Linear(rate * d_model, d_model)

    def forward(self, positions: Tensor) -> Tensor:
        return self.kernel(positions.flatten(-2))  # (..., c, D) -> (..., c D) -> (..., D)


class CompressiveTransformer(TransformerXL):
    """Compressive Transformer: "Compressive Transformers for Long-Range Sequence Modelling" (Rae et
    al. 2019).

    Compressive Transformer, a `LanguageModel` and an `Encoder`.
    """

    Config: type = CompressiveTransformerConfig
    SIZES: dict[str, Any] = {}  # noqa: RUF012
    extras = (LOSS,)

    def __init__(self, config: CompressiveTransformerConfig):
        super().__init__(config)
        width, rate = config.d_model, config.compression_rate
        self.compressions = nn.ModuleList(
            StridedConvolution(width, rate) for _ in range(config.layers)
        )
        init_transformer_xl(self.compressions, config.init_range)

    @property
    def sharded_parts(self) -> list[nn.Module]:
        """None: the reconstruction loss reads the weights of all layers, after they have run."""
        return []

    def forward(self, ids: Tensor, state: CarriedMemory | None = None) -> Output:
        """See `TransformerXL.forward`. In training the extra "reconstruction" is the sum of the
        reconstruction loss over the tokens.
        """
        before = self._memory_for(ids, state)
        *_, hidden = self._layers(ids, before)
        memory = before.advance(ids.size(1))
        oldest = memory.oldest_groups()
        compressed = self._compress(oldest)
        extras = {}
        if self.training:
            extras[LOSS] = self._reconstruction(memory, ids.size(1), oldest, compressed)
        return Output(hidden, memory.compress(compressed.detach(), self._keys_and_values), extras)

    def prefill(
        self, tokens: Tensor, state: CarriedMemory, lengths: Tensor | None = None
    ) -> CarriedMemory:
        before = self._memory_for(tokens, state)
        for _ in self._layers(tokens, before):
            pass
        memory = before.advance(tokens.size(1), lengths)
        return memory.compress(self._compress(memory.oldest_groups()), self._keys_and_values)

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> CompressedMemory:
        base, config = super().empty(sequences, dtype), self.config
        capacity = config.compressed_length + config.memory_length + config.compression_rate - 1
        return CompressedMemory(
            **{**vars(base), "limit": capacity},
            single=torch.zeros_like(base.lengths),
            memory_length=config.memory_length,
            compressed_length=config.compressed_length,
            rate=config.compression_rate,
        )

    def _memory_for(self, ids: Tensor, state: CarriedMemory | None) -> CompressedMemory:
        memory = super()._memory_for(ids, state)
        assert isinstance(memory, CompressedMemory)
        return memory

    def _keys_and_values(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        return self.blocks[layer].keys_and_values(slots)

    def _compress(self, positions: Tensor) -> Tensor:
        """Layer by layer: (B, L, G, c, D) -> (B, L, G, D)."""
        layers = zip(self.compressions, positions.unbind(1), strict=True)
        return torch.stack([compress(groups) for compress, groups in layers], 1)

    def _reconstruction(
        self, memory: CarriedMemory, count: int, old: Tensor, compressed: Tensor
    ) -> Tensor:
        """Algorithm 2, summed over the `count` tokens of each sequence: ()."""
        segment = slice(memory.end - count, memory.end)
        total = compressed.new_zeros((), dtype=torch.float32)
        if not compressed.size(2):
            return total
        for n, block in enumerate(self.blocks):
            with frozen(block):
                query = block.content_queries(memory.hidden[:, n, segment])  # (B, H, T, K)
                expected = ops.attention(query, *block.keys_and_values(old[:, n].flatten(1, 2)))
                reconstructed = ops.attention(query, *block.keys_and_values(compressed[:, n]))
            difference = (expected - reconstructed).float()
            total = total + torch.linalg.vector_norm(difference, dim=(1, 3)).sum()
        return total


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """What is computed here gives no gradient to the parameters of a module."""
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)


# -------------------------------------------------------------------------------------- Segatron-XL
#
# Transformer-XL that also knows how many sentences and paragraphs lie between a query and a key.
# Each of the three distances has a third of the vector that W_r reads (section 2.2):
#
#   r_ij = [sinusoid(i - j); sinusoid(sentence_i - sentence_j); sinusoid(paragraph_i - paragraph_j)]
#
# Sentences and paragraphs are numbered through the whole text.


@dataclass(frozen=True)
class SegaTransformerXLConfig(TransformerXLConfig):
    """sentence_ends, paragraph_ends: the tokens that end a sentence or a paragraph; `eos` ends a
    paragraph, and the end of a paragraph ends a sentence. They are used where a batch has no
    segment numbers.

    The others are those of `TransformerXLConfig`.
    """

    sentence_ends: TokenIds = ()
    paragraph_ends: TokenIds = ()


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
    """Segatron-XL: "Segatron: Segment-Aware Transformer for Language Modeling" (Bai et al. 2021).

    Segatron-XL, a `LanguageModel` and an `Encoder`.
    """

    Config: type = SegaTransformerXLConfig

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
        tokens = self.dropout(self._placed(position, 0, like))
        return [SegmentDistances(tokens, tuple(others))] * config.layers

    def _placed(self, distances: Tensor, part: int, like: Tensor) -> Tensor:
        """Vectors of distances of one kind in their third, zeros elsewhere: (...,) -> (..., D)."""
        limit, sizes = self.config.max_distance, widths(self.config.d_model)
        distances = distances if limit is None else distances.clamp(max=limit)
        before, after = sum(sizes[:part]), sum(sizes[part + 1 :])
        return F.pad(sinusoid(distances, sizes[part]), (before, after)).to(like.dtype)
