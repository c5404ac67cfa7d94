"""XLNet: "Generalized Autoregressive Pretraining for Language Understanding" (Yang et al. 2019).

    content   ids          -> embed -> L x [two-stream attention, feed-forward] -> h
    query     one vector w ---------> L x [two-stream attention, feed-forward] -> g -> softmax

Transformer-XL's relative positions and memory, trained on permutations: a token is predicted from
those that come before it in a random order of the positions. The content stream h has read its own
token, the query stream g only its position; both read the keys and values of h. A layer norm
follows each sub-layer. For fine-tuning the content stream is an encoder whose tokens all see each
other (section 2.6); classifiers read its last token.

One dropout mask of the distance vectors holds for all sequences of a batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.attention import relative_attention
from regard.attention.cache import KeyValueCache
from regard.data.batches import ALL, Sequences, TokenSubset
from regard.errors import RegardError
from regard.layers import task_heads
from regard.layers.dropout import AddNorm, Dropout
from regard.layers.feedforward import FeedForward
from regard.layers.positions import sinusoid
from regard.layers.softmax import Softmax
from regard.models import protocols
from regard.models.config import Activation, Count, Epsilon, InitScale, Probability, Size, TokenId
from regard.models.gpt2 import NoLMHead, OutputKind
from regard.ops import KeyMask, state_prototype
from regard.text.templates import Template

SummaryKind = Literal["last", "first", "mean"]
SUMMARIES: dict[str, task_heads.PoolingFunction] = {
    "last": task_heads.last_token,
    "first": task_heads.first_token,
    "mean": task_heads.mean_of_tokens,
}


@dataclass(frozen=True)
class XlnetConfig:
    """The defaults are the base model.

    attention: "bi": bidirectional; "uni": causal, as in Transformer-XL.
    memory_length: M, the positions before a segment that it reads; None: no limit.
    reuse_len: only the hidden states of the first `reuse_len` tokens of a segment are carried,
        because segments overlap in training; None: all of them.
    memory_in_training, memory_in_evaluation: whether hidden states are carried.
    max_distance: distances above this one are set to it, on both sides; None: no limit.
    same_length: with "uni", every token sees its own and the M positions before, no more.
        Transformer-XL's option of this name counts M with its own.
    summary, summary_activation, summary_dropout: what the heads "classes" and "multiple_choice"
        read, the activation of their inner layer, and the dropout after it.
    output: as in `GPTConfig`.
    """

    vocab_size: Size
    d_model: Size = 768
    d_ff: Size = 3072
    heads: Size = 12
    layers: Count = 12
    activation: Activation = "gelu"
    dropout: Probability = 0.1
    attention: Literal["bi", "uni"] = "bi"
    memory_length: Size | None = 512
    reuse_len: Size | None = None
    memory_in_training: bool = False
    memory_in_evaluation: bool = True
    max_distance: Size | None = None
    same_length: bool = False
    summary: SummaryKind = "last"
    summary_activation: Activation = "tanh"
    summary_dropout: Probability = 0.1
    norm_eps: Epsilon = 1e-12
    init_range: InitScale = 0.02  # standard deviation of the initial parameters
    output: OutputKind = "tied"
    max_length: Size | None = None  # any
    pad: TokenId | None = 5
    bos: TokenId | None = 1
    eos: TokenId | None = 2

    @property
    def tied(self) -> bool:
        """Whether the output layer uses the matrix of the embedding."""
        return self.output == "tied"


class XlnetBlock(nn.Module):
    """x = norm(x + attend(x, keys)); x = norm(x + feed(x)), for x of either stream"""

    def __init__(self, config: XlnetConfig):
        super().__init__()
        width, eps, dropout = config.d_model, config.norm_eps, config.dropout
        self.attention = relative_attention.TwoStreamAttention(width, config.heads, dropout=dropout)
        self.attention_norm = AddNorm(width, eps=eps, dropout=dropout)
        self.feed = FeedForward(width, config.d_ff, activation=config.activation, dropout=dropout)
        self.feed_norm = AddNorm(width, eps=eps, dropout=dropout)

    def forward(
        self,
        hidden: Tensor,
        keys: relative_attention.StreamKeys,
        relations: relative_attention.StreamRelations,
    ) -> Tensor:
        hidden = self.attention_norm(hidden, self.attention(hidden, keys, relations))
        return self.feed_norm(hidden, self.feed(hidden))


class Xlnet(nn.Module, protocols.CachedLanguageModel, protocols.Encoder):
    """XLNet: "Generalized Autoregressive Pretraining for Language Understanding" (Yang et al.
    2019).

    XLNet, an `Encoder`, and a `LanguageModel` in the order of the text.
    """

    Config: type = XlnetConfig
    longest = protocols.LONGEST_ATTENDED
    SIZES = {
        "base": dict(d_model=768, d_ff=3072, heads=12, layers=12),
        "large": dict(d_model=1024, d_ff=4096, heads=16, layers=24),
    }
    trained_in_order = False  # by regard/tasks/permutation_language_modeling.py

    def __init__(self, config: XlnetConfig):
        super().__init__()
        self.config = config
        width, vocab_size = config.d_model, config.vocab_size
        self.embedding = nn.Embedding(vocab_size, width)
        self.start = nn.Parameter(torch.zeros(width))  # query stream: w of section 2.3
        self.dropout = Dropout(config.dropout)
        self.blocks: Any = nn.ModuleList(XlnetBlock(config) for _ in range(config.layers))
        self.head: Any = NoLMHead()
        if config.output != "none":
            tied = self.embedding if config.tied else None
            self.head = Softmax(width, vocab_size, tied=tied, bias=True)
        _init(self, config.init_range)

    @property
    def sharded_parts(self) -> list[nn.Module]:
        """See `Model`: both streams read the keys that the model makes by `block.attention`."""
        return [block.feed for block in self.blocks]

    @property
    def segment_types(self) -> int:
        """See `Encoder`: two texts and <cls>. The model itself only compares segment ids."""
        return 3

    @property
    def is_causal(self) -> bool:
        """See `Encoder`: with `attention` "uni" the content stream predicts the next token."""
        return self.config.attention == "uni"

    # ---- an encoder

    def encode_segment(
        self, batch: Sequences, memory: relative_attention.SegmentMemory | None = None
    ) -> protocols.Output:
        """One segment of a text, after the memory of earlier ones; see `streams` for its extras.

        The output's `hidden` is (B, P, D) of the query stream, or where there are no targets
        (B, T, D) of the content stream, which the extra "content" always is; its `state` is the
        memory for the next segment, where the configuration carries one.

        Raises:
            RegardError: the batch has padding, which the next segment would see.
        """
        *read, (content, query) = self.streams(batch, memory)
        content = self.dropout(content)
        config, state = self.config, None
        if config.memory_in_training if self.training else config.memory_in_evaluation:
            state = self._next_memory(batch, [hidden for hidden, _ in read], memory)
        hidden = content if query is None else self.dropout(query)
        return protocols.Output(hidden, state, {"content": content})

    def streams(
        self, batch: Sequences, memory: relative_attention.SegmentMemory | None = None
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Both streams of the embeddings, then of each layer: (B, T, D), and (B, P, D) or None.

        The batch may have three extras. "allowed", (B, T, T) bool, says whether token i may attend
        to token j; a token of the content stream sees itself, and one of the query stream does not,
        whatever it says. "targets", (B, P), are the positions that the query stream predicts.
        "backward", (B,) bool, are the sequences whose distances are negated.
        """
        before = 0 if memory is None else memory.hidden.size(2)
        content, query = self.dropout(self.embedding(batch.ids)), None
        reading = predicting = self._relations(batch, before, batch.positions[None])
        if (targets := batch.extras.get("targets")) is not None:
            query = self.dropout(self.start.expand(*targets.shape, -1))
            predicting = self._relations(batch, before, targets, relative_attention.QUERY)
        yield content, query
        reach = before + batch.width
        distances = self._distances(-reach, reach)
        for n, block in enumerate(self.blocks):
            past = None if memory is None else memory.hidden[:, n]
            keys = block.attention.read(content, distances, past)
            query = None if query is None else block(query, keys, predicting)
            content = block(content, keys, reading)
            yield content, query

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> protocols.States:
        """The hidden states of the content stream."""
        streams = self.streams(batch)
        for _ in range(self.config.layers):
            yield next(streams)[0]
        yield tokens.of(self.dropout(next(streams)[0]))

    def _distances(self, least: int, most: int) -> Tensor:
        """The vectors of distances from `least` to `most`, (R, D)."""
        distances = torch.arange(least, most + 1, device=self.start.device)
        limit = self.config.max_distance
        if limit is not None:
            distances = distances.clamp(-limit, limit)
        return self.dropout(sinusoid(distances, self.config.d_model).to(self.start))

    def _relations(
        self,
        batch: Sequences,
        before: int,
        queries: Tensor,
        stream: str = relative_attention.CONTENT,
    ) -> relative_attention.StreamRelations:
        """The relations of the queries at positions (1 or B, T) of a segment.

        before: number of memory keys.
        """
        reach = before + batch.width
        keys = torch.arange(reach, device=batch.ids.device)
        distance = (before + queries)[:, None, :, None] - keys  # (1 or B, 1, T, S)
        grid = KeyMask.padding(batch.lengths + before, reach).grid
        if self.config.attention == "uni":
            causal = distance >= 0
            grid = _both(grid, causal & (distance <= before) if self.config.same_length else causal)
        if (allowed := batch.extras.get("allowed")) is not None:
            grid = _both(grid, relative_attention.allowed_keys(allowed, queries, before))
        if stream == relative_attention.QUERY:
            grid = _both(grid, distance != 0)
        elif self.config.attention == "uni" or allowed is not None:
            grid = None if grid is None else grid | (distance == 0)
        segments = batch.segments
        other = (
            None
            if segments is None
            else relative_attention.in_other_segment(segments, queries, before)
        )
        if (backward := batch.extras.get("backward")) is not None:
            distance = torch.where(backward[:, None, None, None], -distance, distance)
        return relative_attention.StreamRelations(KeyMask(grid), distance + reach, other, stream)

    def _next_memory(
        self, batch: Sequences, read: list[Tensor], memory: relative_attention.SegmentMemory | None
    ) -> relative_attention.SegmentMemory:
        """The memory for the next segment, from the inputs of the layers, (B, T, D) each."""
        if not bool(batch.keep.all()):
            raise RegardError(
                "A segment with memory must not be padded. Give segments of one length, or set "
                "`memory_in_evaluation` or `memory_in_training` to false."
            )
        config = self.config
        hidden = torch.stack(read, 1)[:, :, : config.reuse_len]  # (B, L, T, D)
        return relative_attention.SegmentMemory.after(hidden, memory, config.memory_length)

    # ---- a language model

    def forward(self, ids: Tensor, state: KeyValueCache | None = None) -> protocols.Output:
        """Hidden states (B, T, D) that predict the token after each of the ids (B, T).

        In the order of the text, the query stream stands one position further than the content
        stream. With `attention` "uni" the content stream predicts.
        """
        if state is not None:
            return protocols.Output(*self.continued(ids, state))
        positions = torch.arange(ids.size(1), device=ids.device)[None]
        return protocols.Output(
            self._following(ids, positions, KeyMask.causal(ids.size(1), ids.device))
        )

    def continued(self, ids: Tensor, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """Hidden states (B, T, D) of the ids (B, T) that follow a state, and the next state."""
        state.consume()
        count = ids.size(1)
        cache = state.reserve(count)
        hidden = self._following(ids, cache.positions(count), cache.mask(count), cache)
        return hidden, cache.advance(count)

    def _following(
        self, ids: Tensor, positions: Tensor, mask: KeyMask, cache: KeyValueCache | None = None
    ) -> Tensor:
        """Hidden states of what follows ids (B, T) at positions (1 or B, T)."""
        config, longest = self.config, ids.size(1) + (0 if cache is None else cache.longest)
        distance = positions[:, None, :, None] - torch.arange(longest, device=ids.device)
        if config.same_length and config.memory_length:
            mask = KeyMask(_both(mask.grid, distance <= config.memory_length))
        relations = relative_attention.StreamRelations(mask, distance.clamp(min=0))
        next_one = relative_attention.StreamRelations(
            mask, (distance + 1).clamp(min=0), stream=relative_attention.QUERY
        )
        distances = self._distances(0, longest)
        content = self.dropout(self.embedding(ids))
        query = self.dropout(self.start.expand_as(content))
        for n, block in enumerate(self.blocks):
            keys = block.attention.read(content, distances, cache=cache and cache.layer(n))
            if config.attention == "bi":
                query = block(query, keys, next_one)
            content = block(content, keys, relations)
        return self.dropout(query if config.attention == "bi" else content)

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> KeyValueCache:
        """A cache without any position."""
        config, weight = self.config, self.start  # the embedding may be quantized
        like = state_prototype(weight, dtype)
        head_dim = config.d_model // config.heads
        return KeyValueCache.empty(sequences, config.layers, config.heads, head_dim, like=like)

    # ---- heads and texts

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        config, width = self.config, self.config.d_model
        head: nn.Module
        match kind:
            case "classes" | "multiple_choice":
                pooling, dropout = SUMMARIES[config.summary], config.summary_dropout
                activation = config.summary_activation
                head = task_heads.dense_head(
                    width, outputs, activation, pooling=pooling, dropout=dropout
                )
            case _:
                head = task_heads.token_head(self, kind, outputs, dropout=0.0)
        return task_heads.init_weights(head, config.init_range)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """A <sep> <cls>, and A <sep> B <sep> <cls>, where the tokenizer's file has no template."""
        ends, sums_up = tokenizer.required_ids("sep", "cls")
        first, second, last = (ends, 0), (ends, 1), (sums_up, 2)
        return Template(((), (first, last)), ((), (first,), (second, last)))


def _both(grid: Tensor | None, other: Tensor) -> Tensor:
    """What two grids allow, of which the first may be missing."""
    return other if grid is None else grid & other


def _init(model: Xlnet, std: float) -> None:
    task_heads.init_weights(model, std)
    for block in model.blocks:
        part = block.attention
        for vectors in (part.content_bias, part.position_bias, part.segment_bias, part.segments):
            nn.init.normal_(vectors, std=std)
    nn.init.normal_(model.start, std=std)
    if model.config.output == "own":
        nn.init.normal_(model.head.weight, std=std)
