"""Transformer-XL: "Attentive Language Models Beyond a Fixed-Length Context" (Dai et al. 2019).

    ids -> adaptive embed -> L x [relative attention over memory and segment, feed-forward]
        -> adaptive softmax

The decoder of the Transformer, read segment by segment: every layer also attends to the inputs that
it had at the last M positions, and positions are compared by their distance. What a token sees
grows by M with every layer.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention.carried_memory import CarriedMemory, DistanceKeys
from regard.attention.multihead import LayerCache
from regard.attention.relative_attention import (
    ByDistance,
    Distances,
    ProjectedDistances,
    RelativeAttention,
    distance_vectors,
)
from regard.data.batches import ALL, Sequences, TokenSubset
from regard.errors import ConfigError
from regard.layers.dropout import AddNorm, Dropout
from regard.layers.feedforward import FeedForward
from regard.layers.softmax import AdaptiveEmbedding, AdaptiveSoftmax, Clusters
from regard.layers.task_heads import ClassificationHead, LastToken, token_head
from regard.models import protocols
from regard.models.config import Count, Epsilon, Flags, InitScale, Probability, Size, Sizes, TokenId
from regard.models.gpt2 import GPT, NoLMHead, OutputKind
from regard.ops import KeyMask
from regard.text.templates import Template


@dataclass(frozen=True)
class TransformerXLConfig:
    """The defaults are the base model for WikiText-103 with a plain softmax (no `cutoffs`).

    d_embedding: the width of the vectors of the most frequent words; None: `d_model`.
    cutoffs, divisor: the clusters of the vocabulary, see `regard.layers.softmax.Clusters`.
    output: the output layer: "tied" to the embedding, with matrices of its "own", or "none", in a
        model that is only an encoder.
    tied_projections: for each cluster, whether input and output share the projection; missing
        entries: false.
    norm: whether the layer norm follows a sub-layer (post) or comes before it (pre).
    shared_biases: whether all layers have the same content and position bias.
    memory_length: M, the positions before a segment that it reads; 0: none.
    memory_start: what the first segment attends to before itself: "empty" nothing; "zeros" M hidden
        states of zero, as in the authors' program.
    same_length: every token sees its own and the M - 1 positions before, no more. XLNet's option of
        this name counts M before its own.
    max_distance: distances above this one are set to it; None: no limit.
    target_length: length of a segment in evaluation (`tgt_len` of the authors' program).
    """

    vocab_size: Size
    d_model: Size = 410
    d_embedding: Size | None = None
    d_ff: Size = 2100
    heads: Size = 10
    head_dim: Size | None = None  # None: d_model / heads
    layers: Size = 16
    cutoffs: Sizes = ()
    divisor: Size = 1
    output: OutputKind = "tied"
    tied_projections: Flags = ()
    norm: Literal["post", "pre"] = "post"
    shared_biases: bool = False
    memory_length: Count = 150
    memory_start: Literal["empty", "zeros"] = "empty"
    same_length: bool = False
    max_distance: Size | None = None
    target_length: Size = 150
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    norm_eps: Epsilon = 1e-5
    init_range: InitScale = 0.02  # standard deviation of the initial matrices
    max_length: Size | None = None  # any
    pad: TokenId | None = None
    bos: TokenId | None = None
    eos: TokenId | None = 0

    @property
    def tied(self) -> bool:
        """Whether the output layer uses the matrix of the embedding."""
        return self.output == "tied"

    @property
    def clusters(self) -> Clusters:
        """How the vocabulary is cut."""
        width = self.d_embedding or self.d_model
        return Clusters(self.vocab_size, self.d_model, width, tuple(self.cutoffs), self.divisor)

    @property
    def head_width(self) -> int:
        """K"""
        return self.head_dim or self.d_model // self.heads

    def ties_projection(self, cluster: int) -> bool:
        """Whether the projection of a cluster is the embedding's too."""
        return cluster < len(self.tied_projections) and self.tied_projections[cluster]

    def __post_init__(self) -> None:
        _ = self.clusters  # raises an error for those that cannot be
        if self.same_length and not self.memory_length:
            raise ConfigError(
                "`memory_length` must be at least 1 with `same_length`: a token would not even see "
                "itself."
            )


class PostNormBlock(nn.Module):
    """x = norm(x + attend(x)); x = norm(x + feed(x))"""

    def __init__(self, config: TransformerXLConfig):
        super().__init__()
        self.attention = relative_attention(config)
        self.attention_norm = add_norm(config)
        self.feed = feed_forward(config)
        self.feed_norm = add_norm(config)

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask,
        distances: Distances,
        memory: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        attended = self.attention(hidden, mask, distances, memory=memory, cache=cache)
        hidden = self.attention_norm(hidden, attended)
        return self.feed_norm(hidden, self.feed(hidden))

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory (B, M, D): (B, H, M, K) twice."""
        return self.attention.keys_and_values(memory)

    def content_queries(self, hidden: Tensor) -> Tensor:
        """q + u of the inputs of the block: (B, T, D) -> (B, H, T, K)."""
        return self.attention.content_queries(hidden)


class PreNormBlock(nn.Module):
    """x = x + attend(norm(x)); x = x + feed(norm(x)). The memory is read through the norm, too."""

    def __init__(self, config: TransformerXLConfig):
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.attention = relative_attention(config)
        self.feed_norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.feed = feed_forward(config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask,
        distances: Distances,
        memory: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        normed, memory = self.attention_norm(hidden), self._read(memory)
        attended = self.attention(normed, mask, distances, memory=memory, cache=cache)
        hidden = hidden + self.dropout(attended)
        return hidden + self.dropout(self.feed(self.feed_norm(hidden)))

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory (B, M, D): (B, H, M, K) twice."""
        return self.attention.keys_and_values(self.attention_norm(memory))

    def content_queries(self, hidden: Tensor) -> Tensor:
        """q + u of the inputs of the block: (B, T, D) -> (B, H, T, K)."""
        return self.attention.content_queries(self.attention_norm(hidden))

    def _read(self, memory: Tensor | None) -> Tensor | None:
        return None if memory is None else self.attention_norm(memory)


BLOCKS: dict[str, Any] = {"post": PostNormBlock, "pre": PreNormBlock}


def relative_attention(config: TransformerXLConfig) -> RelativeAttention:
    """The attention of this configuration."""
    return RelativeAttention(
        config.d_model,
        config.heads,
        head_dim=config.head_dim,
        dropout=config.attention_dropout,
    )


def add_norm(config: TransformerXLConfig) -> AddNorm:
    """norm(x + drop(f(x))), after each sub-layer f."""
    return AddNorm(config.d_model, eps=config.norm_eps, dropout=config.dropout)


def feed_forward(config: TransformerXLConfig) -> FeedForward:
    """The feed-forward layer of this configuration."""
    return FeedForward(config.d_model, config.d_ff, dropout=config.dropout)


PROJECTION_INIT = 0.01  # standard deviation of the projections of embedding and softmax


class TransformerXL(nn.Module, protocols.LanguageModel[CarriedMemory], protocols.Encoder):
    """Transformer-XL: "Attentive Language Models Beyond a Fixed-Length Context" (Dai et al. 2019).

    Transformer-XL, a `LanguageModel` and an `Encoder`.
    """

    Config: type = TransformerXLConfig
    longest = protocols.LONGEST_ATTENDED
    SIZES = {
        "base": dict(d_model=410, d_ff=2100, heads=10, head_dim=41, layers=16, memory_length=150),
        "large": dict(
            d_model=1024, d_ff=4096, heads=16, head_dim=64, layers=18, divisor=4, memory_length=384,
            dropout=0.2,
        ),
    }  # fmt: skip

    def __init__(self, config: Any):
        super().__init__()
        self.config, clusters = config, config.clusters
        # Section 3.4 of Vaswani et al. 2017: the embedding is scaled up.
        self.embedding = AdaptiveEmbedding(clusters, scale=config.d_model**0.5)
        self.dropout = Dropout(config.dropout)
        blocks = nn.ModuleList(BLOCKS[config.norm](config) for _ in range(config.layers))
        self.blocks = cast("Sequence[PostNormBlock | PreNormBlock]", blocks)
        self.head: Any = NoLMHead()
        if config.output != "none":
            self.head = AdaptiveSoftmax(
                clusters,
                tied=self.embedding if config.output == "tied" else None,
                embedding=self.embedding,
                tied_projections=config.tied_projections,
            )
        if config.shared_biases:
            share_biases(self.blocks)
        init_transformer_xl(self, config.init_range)

    @property
    def target_length(self) -> int:
        return self.config.target_length

    # ---- a language model

    def forward(self, ids: Tensor, state: CarriedMemory | None = None) -> protocols.Output:
        """Hidden states (B, T, D) that predict the token after each of the ids (B, T), a segment
        that follows a state; and the next state, without gradient.
        """
        memory = self._memory_for(ids, state)
        *_, hidden = self._layers(ids, memory)
        return protocols.Output(hidden, memory.advance(ids.size(1)))

    def _layers(self, ids: Tensor, memory: CarriedMemory) -> Iterator[Tensor]:
        """Hidden states of the embeddings, then of each layer, which are written to the memory."""
        hidden = self.dropout(self.embedding(ids))
        yield hidden
        mask, distances = memory.mask(ids.size(1)), self._distances(memory, ids.size(1))
        for n, block in enumerate(self.blocks):
            memory.write(n, hidden)
            if self._caches_keys:
                hidden = block(hidden, mask, distances[n], cache=memory.layer(n))
            else:
                earlier = memory.read(n, like=hidden)
                hidden = block(hidden, mask, distances[n], memory=earlier)
            yield self.dropout(hidden) if n == len(self.blocks) - 1 else hidden

    def _memory_for(self, ids: Tensor, state: CarriedMemory | None) -> CarriedMemory:
        """The memory that a segment of ids reads, with capacity for the segment."""
        memory = self.empty(ids.size(0)) if state is None else state
        memory.consume()
        memory = memory.reserve(ids.size(1))
        if not self._caches_keys:
            return memory.without_keys()
        memory = memory.with_keys(lambda n, hidden: self.blocks[n].keys_and_values(hidden))
        return replace(memory, distances=self._distance_keys(memory, ids.size(1)))

    @property
    def _caches_keys(self) -> bool:
        """Whether keys and values are cached: gradients and dropout need them recomputed."""
        return not (self.training or torch.is_grad_enabled())

    def _distances(self, memory: CarriedMemory, count: int) -> list[Distances]:
        """The distances of the next `count` queries and their keys, for each layer."""
        total = memory.count + count
        if self._caches_keys:
            layers = range(self.config.layers)
            return [ProjectedDistances(memory.distances.layer(n, total)) for n in layers]
        vectors = self._vectors(total, memory.hidden)
        return [ByDistance(self.dropout(vectors))] * self.config.layers

    def _distance_keys(self, memory: CarriedMemory, count: int) -> DistanceKeys:
        """W_r r of at least as many distances as the next segment has, for every layer."""
        total = memory.count + count
        if memory.distances.count >= total:
            return memory.distances
        total = max(total, min(memory.limit + 1, 2 * total))
        vectors = self._vectors(total, memory.hidden)
        projected = [block.attention.project(vectors)[0] for block in self.blocks]
        return DistanceKeys(torch.stack(projected))

    def _vectors(self, count: int, like: Tensor) -> Tensor:
        return distance_vectors(
            count, self.config.d_model, max_distance=self.config.max_distance, like=like
        )

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> CarriedMemory:
        """A memory of nothing, or of zeros; see `memory_start`."""
        config, weight = self.config, self.embedding.weight
        like = ops.state_prototype(weight, dtype)
        zeros = config.memory_length if config.memory_start == "zeros" else 0
        layers, shape = config.layers, (config.heads, 0, config.head_width)
        none = like.new_empty(sequences, layers, *shape)
        return CarriedMemory(
            like.new_zeros(sequences, layers, zeros, config.d_model),
            keys=none,
            values=none,
            lengths=torch.full((sequences,), zeros, device=weight.device),
            distances=DistanceKeys(like.new_empty(layers, *shape)),
            limit=config.memory_length,
            window=config.memory_length if config.same_length else 0,
            end=zeros,
        )

    def prefill(
        self, tokens: Tensor, state: CarriedMemory, lengths: Tensor | None = None
    ) -> CarriedMemory:
        """The state after the tokens (B, T), or after the first `lengths` (B,) of them."""
        memory = self._memory_for(tokens, state)
        for _ in self._layers(tokens, memory):
            pass
        return memory.advance(tokens.size(1), lengths)

    def step(self, tokens: Tensor, state: CarriedMemory) -> tuple[Tensor, CarriedMemory]:
        """Logits (B, T, V) of the token after each of the tokens (B, T), and the next state."""
        output = self(tokens, state)
        return self.head.logits(output.hidden), output.state

    def with_memory(
        self, memory_length: int | None = None, max_distance: int | None = None
    ) -> Self:
        """See `LanguageModel`; the weights are not copied. With `same_length`, the memory length is
        also the number of keys that each token sees.

        Raises:
            ConfigError: the memory is 0 with `same_length`.
        """
        other = copy.copy(self)
        changes = {"memory_length": memory_length, "max_distance": max_distance}
        changed = {name: value for name, value in changes.items() if value is not None}
        other.config = replace(self.config, **changed)
        return other

    # ---- an encoder

    @property
    def is_causal(self) -> bool:
        return True

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> protocols.States:
        """The hidden states of texts, each read as one segment."""
        layers = self._layers(batch.ids, self._memory_for(batch.ids, None))
        for n, hidden in enumerate(layers):
            yield tokens.of(hidden) if n == self.config.layers else hidden

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        config, width = self.config, self.config.d_model
        match kind:
            case "classes":
                pooling = LastToken(skip=config.pad)
                head = ClassificationHead(width, outputs, pooling=pooling, bias=False)
            case "multiple_choice":
                head = ClassificationHead(width, 1, pooling=LastToken(skip=config.pad))
            case _:
                head = token_head(self, kind, outputs, dropout=config.dropout)
        return init_transformer_xl(head, config.init_range)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """As GPT has it: start A extract, and start A delimiter B extract."""
        return GPT.template(tokenizer)


def share_biases(blocks: Sequence[PostNormBlock | PreNormBlock]) -> None:
    """Give all layers the content and the position bias of the first."""
    first = blocks[0].attention
    for block in blocks[1:]:
        block.attention.content_bias = first.content_bias
        block.attention.position_bias = first.position_bias


def init_transformer_xl(module: nn.Module, std: float) -> nn.Module:
    """Matrices, embeddings, content and position biases normal around 0; projections closer to 0;
    the scales of norms normal around 1; other biases 0.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.LayerNorm):
            nn.init.normal_(part.weight, 1.0, std)
        elif isinstance(part, RelativeAttention):
            for bias in (part.content_bias, part.position_bias):
                nn.init.normal_(bias, std=std)
        elif isinstance(part, AdaptiveEmbedding | AdaptiveSoftmax):
            for projection in part.projections:
                nn.init.normal_(projection, std=PROJECTION_INIT)
        if isinstance(part, AdaptiveSoftmax):
            for weight in filter(
                lambda weight: weight is not None, [*part.weights, part.cluster_weight]
            ):
                nn.init.normal_(weight, std=std)
    return module
