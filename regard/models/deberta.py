"""DeBERTa, versions 2 and 3: "Decoding-enhanced BERT with Disentangled Attention" (He et al. 2021).

    ids -> embed -> project -> norm -> L x [disentangled self-attention, feed-forward] -> hidden
                                            first layer: + convolution over the embeddings

BERT's network, whose tokens have no absolute positions. A token's content and its distance to
another are two vectors, and a score is the sum of content to content, content to position and
position to content (`regard.attention.relative.DisentangledRelation`). All layers share the
vectors of distances; with `share_att_key` a layer projects them by the matrices of its own queries
and keys. Version 3 ("Improving DeBERTa using ELECTRA-Style Pre-Training with Gradient-Disentangled
Embedding Sharing", He et al. 2023) is the same network. Options without a usual name have that of
the authors' program.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import BeforeValidator
from torch import Tensor, nn

from regard.attention import relative
from regard.attention.attend import Dot, Relation
from regard.attention.multihead import PackedLinear, SelfAttention, split_heads
from regard.data.batches import ALL, Sequences, TokenSubset
from regard.layers.convolution import Convolution
from regard.layers.dropout import Dropout
from regard.layers.feedforward import activation_of
from regard.layers.linear import Linear
from regard.layers.task_heads import TASK_HEADS, dense_head, init_weights, token_head
from regard.models.bert import Bert, BertBlock, BertConfig
from regard.models.config import Activation, Count, Epsilon, Probability, Size
from regard.models.protocols import States
from regard.ops import KeyMask, SequenceOffsets, unstack_qkv


def _terms(value: Any) -> Any:
    """None, "c2p|p2c" or a list, as published files have it, as a tuple."""
    if isinstance(value, str):
        names = [name.strip() for name in value.lower().split("|")]
        value = [name for name in names if name not in ("", "none")]
    return tuple(value or ()) if isinstance(value, list | None) else value


PositionTerms = Annotated[tuple[Literal["c2p", "p2c"], ...], BeforeValidator(_terms)]


@dataclass(frozen=True)
class DebertaConfig(BertConfig):
    """The defaults are the base model of version 3.

    d_embedding: the width of the embeddings.
    segments: 0: there are none.
    positions: of the embeddings, "none" or "learned".
    relative_attention: whether scores depend on distances.
    pos_att_type: the terms of scores with distances: content to position, position to content.
    position_buckets: of distances, on each side; 0: each has a vector of its own.
    max_relative_positions: the distance from which on all share a vector.
    share_att_key: whether distances are projected by the matrices of queries and keys.
    norm_rel_ebd: whether a layer norm follows the vectors of distances.
    conv_kernel_size: tokens that the convolution beside the first layer reads; 0: there is none.
    conv_act: its activation.
    head_dropout: of the heads "classes" and "multiple_choice"; None: `dropout`.
    pooler_activation, pooler_dropout: of their inner layer, and before it.
    """

    d_embedding: Size = 768
    segments: Count = 0
    positions: Literal["learned", "none"] = "none"
    relative_attention: bool = True
    pos_att_type: PositionTerms = ("c2p", "p2c")
    position_buckets: Count = 256
    max_relative_positions: Size = 512
    share_att_key: bool = True
    norm_rel_ebd: bool = True
    conv_kernel_size: Count = 0
    conv_act: Activation = "tanh"
    pooler_activation: Activation = "gelu"
    pooler_dropout: Probability = 0.0
    norm_eps: Epsilon = 1e-7

    @property
    def span(self) -> int:
        """How many distances on each side have a vector."""
        return self.position_buckets or self.max_relative_positions

    def bucket(self, distance: Tensor) -> Tensor:
        """The number of the vector of each signed distance, not clipped: (...,) -> (...,)."""
        if not self.position_buckets:
            return distance
        return relative.log_bucket(distance, self.position_buckets, self.max_relative_positions)


class DisentangledAttention(SelfAttention):
    """Self-attention that also projects the vectors of distances to queries and keys."""

    def __init__(self, config: DebertaConfig):
        width, terms = config.d_model, {*config.pos_att_type}
        scale = (width // config.heads * (1 + len(terms))) ** -0.5
        super().__init__(
            *(width, config.heads),
            kind="encoder",
            dropout=config.attention_dropout,
            score=Dot(scale),
        )
        self.terms, self.shares_keys = terms, config.share_att_key
        self.position_dropout = Dropout(config.dropout)
        projected = terms if config.relative_attention and not self.shares_keys else ()
        self.position_key, self.position_query = (
            PackedLinear(width, width, parts=1) if term in projected else None
            for term in ("c2p", "p2c")
        )

    def project(self, vectors: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Keys and queries of R distances, (R, D) -> 2 times (1, H, R, K); None: no such term."""
        vectors = self.position_dropout(vectors)[None]
        if self.shares_keys:
            # (1, R, 3 * H * K) -> (1, R, 3, H, K)
            packed = self.query_key_value(vectors).unflatten(-1, (3, self.heads, self.head_dim))
            query, key, _ = unstack_qkv(packed)
            return key if "c2p" in self.terms else None, query if "p2c" in self.terms else None
        heads = list(self.remaining_heads)
        of_layers = (
            layer and split_heads(layer(vectors), self.total_heads)[:, heads]
            for layer in (self.position_key, self.position_query)
        )
        return cast("tuple[Tensor | None, Tensor | None]", tuple(of_layers))

    def _read(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: KeyMask,
        relation: Relation | None = None,
    ) -> Tensor:
        of_layer = relation and replace(cast(Any, relation), project=self.project)
        return super()._read(query, key, value, mask, of_layer)


class DebertaBlock(BertBlock):
    """x = norm(x + attend(x)); x = norm(x + feed(x))"""

    attention: DisentangledAttention

    def __init__(self, config: DebertaConfig):
        super().__init__(config)
        self.attention = DisentangledAttention(config)


class DisentangledPositions(relative.RelativePositions):
    """The vectors of distances, which all layers share.

    Raises:
        ValueError: there are too few buckets, or more than distances.
    """

    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.config, middle = config, config.position_buckets // 2
        if config.position_buckets and not 0 < middle < config.max_relative_positions - 1:
            raise ValueError(
                "`position_buckets` must be 0, or at least 2 and below 2 * "
                "(`max_relative_positions` - 1), but it is "
                f"{config.position_buckets}, and `max_relative_positions` is "
                f"{config.max_relative_positions}."
            )
        width = config.d_model
        self.vectors = nn.Embedding(2 * config.span, width) if config.relative_attention else None
        normed = config.norm_rel_ebd
        self.norm = nn.LayerNorm(width, eps=config.norm_eps) if normed else nn.Identity()

    def of(self, batch: Sequences) -> relative.Relations:
        """Between all tokens of a batch, padded or unpadded."""
        positions = torch.arange(batch.width, device=batch.ids.device)
        offsets = None if batch.layout is None else batch.layout.offsets
        return self.between(positions, positions, offsets)

    def between(
        self, queries: Tensor, keys: Tensor, offsets: SequenceOffsets | None = None
    ) -> relative.Relations:
        """See `RelativePositions`; offsets: of the sequences of an unpadded batch."""
        config = self.config
        if self.vectors is None or not config.pos_att_type:
            return [None] * config.layers
        rows, reach = config.bucket(relative.distances(queries, keys)), config.span
        if len(keys) and not torch.compiler.is_exporting():  # texts of any length have one graph
            reach = min(reach, int(config.bucket(torch.tensor(len(keys) - 1))) + 1)
        vectors = self.norm(self.vectors.weight[config.span - reach : config.span + reach])
        relation = relative.DisentangledRelation(
            vectors, rows.clamp(-reach, reach - 1) + reach, offsets
        )
        return [relation] * config.layers


class TokenConvolution(nn.Module):
    """norm(h + a(drop(conv(x)))), of the embeddings x and the states h of the first layer.

    Raises:
        ValueError: the kernel is even.
    """

    def __init__(self, config: DebertaConfig):
        super().__init__()
        if config.conv_kernel_size % 2 == 0:
            must = f"must be 0 or odd, but is {config.conv_kernel_size}."
            raise ValueError(f"`conv_kernel_size` {must}")
        width = config.d_model
        self.convolution = Convolution(width, width, config.conv_kernel_size)
        self.dropout = Dropout(config.dropout)
        self.activation = activation_of(config.conv_act)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)

    def forward(self, embedded: Tensor, hidden: Tensor, batch: Sequences) -> Tensor:
        """2 times (B, T, D) or (1, N, D) -> the same."""
        neighbours = self.convolution.centered(batch.pad(embedded), batch.keep)
        if batch.layout is not None:
            neighbours = batch.layout.unpad(neighbours)
        return self.norm(hidden + self.activation(self.dropout(neighbours)))


VERSION_2: dict[str, Any] = dict(
    d_model=1536, d_ff=6144, heads=24, d_embedding=1536, conv_kernel_size=3, conv_act="gelu"
)


class Deberta(Bert):
    """DeBERTa: "Decoding-enhanced BERT with Disentangled Attention" (He et al. 2021).

    DeBERTa of version 2 or 3 without a head, an `Encoder`.
    """

    Config = DebertaConfig
    SIZES = {  # noqa: RUF012
        "xsmall": dict(d_model=384, d_ff=1536, heads=6, layers=12, d_embedding=384),
        "small": dict(d_model=768, d_ff=3072, heads=12, layers=6, d_embedding=768),
        "base": dict(d_model=768, d_ff=3072, heads=12, layers=12, d_embedding=768),
        "large": dict(d_model=1024, d_ff=4096, heads=16, layers=24, d_embedding=1024),
        "xlarge": dict(VERSION_2, layers=24),
        "xxlarge": dict(VERSION_2, layers=48),
    }
    block = DebertaBlock
    head_kinds = ("masked_lm", *TASK_HEADS)
    pooled = ()

    def __init__(self, config: DebertaConfig):
        super().__init__(config)
        width = config.d_model
        projected = config.d_embedding != width
        self.project = Linear(config.d_embedding, width, bias=False) if projected else nn.Identity()
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.relations = DisentangledPositions(config)
        self.convolution = TokenConvolution(config) if config.conv_kernel_size else None
        for part in (self.project, self.relations, self.convolution or nn.Identity()):
            init_weights(part, config.init_range)

    @property
    def segment_types(self) -> int:
        return max(1, self.config.segments)

    def embed(self, batch: Sequences) -> Tensor:
        """Token, and where there are any + position + segment, (B, T, D) or (1, N, D)."""
        words = self.embedding(batch.ids)
        if self.config.positions != "none":
            words = words + self.positions.of(batch)
        if self.segments is not None:
            segments = torch.zeros_like(batch.ids) if batch.segments is None else batch.segments
            words = words + self.segments(segments)
        return self.dropout(self.norm(self.project(words)))

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        hidden = embedded = self.embed(batch)
        yield hidden
        mask, relations = batch.padding_mask(), self.relations.of(batch)
        for number, block in enumerate(self.blocks):
            is_last = number + 1 == len(self.blocks)  # it computes only `tokens`
            if number == 0 and self.convolution is not None:
                hidden = block(hidden, mask, relation=relations[0])
                hidden = self.convolution(embedded, hidden, batch)
                hidden = tokens.of(hidden) if is_last else hidden
            else:
                hidden = block(hidden, mask, tokens if is_last else ALL, relations[number])
            yield hidden

    def _head(self, kind: str, outputs: int) -> nn.Module:
        config = self.config
        match kind:
            case "classes" | "multiple_choice":
                dropouts = dict(
                    inner_dropout=config.pooler_dropout, dropout=config.dropout_of_heads
                )
                return dense_head(config.d_model, outputs, config.pooler_activation, **dropouts)
            case "tags" | "span":
                return token_head(self, kind, outputs, dropout=config.dropout)
            case _:
                return super()._head(kind, outputs)
