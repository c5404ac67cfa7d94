"""T5: "Exploring the Limits of Transfer Learning" (Raffel et al. 2020).

    source -> embed -> N x [self-attention, feed-forward] -> norm -> memory
    target -> embed -> N x [masked self-attention, cross-attention, feed-forward] -> norm

The Transformer with a norm before each sub-layer that neither subtracts the mean nor adds a bias
(section 2.1), and without positions in the hidden states: each head adds a learned number for the
distance between query and key to their score, which is not divided by sqrt(K). T5 1.1 has a gated
feed-forward layer and an output of its own; in umT5 each layer has its own relative position bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.attention import relative
from regard.attention.attend import PLAIN, Relation
from regard.attention.cache import KeyValueCache, SourceMemory
from regard.attention.multihead import CrossAttention, LayerCache, Memory, SelfAttention
from regard.attention.pruning import Prunable, Pruned, prune_as_configured
from regard.data.batches import ALL, Sequences, TokenSubset
from regard.layers.dropout import Dropout
from regard.layers.feedforward import FeedForward, GatedFeedForward
from regard.layers.softmax import Softmax
from regard.layers.task_heads import dense_head, mean_of_tokens, token_head
from regard.models import protocols
from regard.models.config import Activation, Epsilon, InitScale, Probability, Size, TokenId
from regard.models.transformer import TransformerState
from regard.ops import KeyMask
from regard.text.templates import Template


@dataclass(frozen=True)
class T5EncoderConfig:
    """Of the encoder, which a whole T5 has, too; the defaults are those of "small".

    gated: gated feed-forward layers (T5 1.1).
    buckets: number of ranges of distances; from `max_distance` on all share the last one.
    bias_per_layer: whether each layer has its own relative position bias (umT5).
    init_scale: what the deviations of all initial parameters are multiplied by.
    tied: of a whole T5, see `T5Config`; without effect in the encoder alone.
    """

    vocab_size: Size
    d_model: Size = 512
    d_ff: Size = 2048
    heads: Size = 8
    head_dim: Size = 64
    layers: Size = 6
    buckets: Size = 32
    max_distance: Size = 128
    bias_per_layer: bool = False
    activation: Activation = "relu"
    gated: bool = False
    dropout: Probability = 0.1
    norm_eps: Epsilon = 1e-6
    init_scale: InitScale = 1.0
    tied: bool = True
    max_length: Size | None = None
    pad: TokenId = 0
    pruned: Pruned = ()


@dataclass(frozen=True)
class T5Config(T5EncoderConfig):
    """`layers` are those of the encoder.

    scale_output: whether hidden states are divided by sqrt(D) before the output.
    bos: the token with which the decoder starts.
    tied: whether the embedding is the output, too.
    """

    decoder_layers: Size = 6
    scale_output: bool = True
    bos: TokenId = 0
    eos: TokenId = 1


def _size(d_model: int, d_ff: int, heads: int, layers: int, head_dim: int = 64) -> dict[str, Any]:
    sizes = dict(d_model=d_model, d_ff=d_ff, heads=heads, head_dim=head_dim)
    return dict(**sizes, layers=layers, decoder_layers=layers)


_V1_1 = dict(gated=True, activation="gelu-tanh", tied=False, scale_output=False)


class T5EncoderBlock(nn.Module):
    """x = x + attend(norm(x), relation); x = x + feed(norm(x))"""

    def __init__(self, config: T5EncoderConfig):
        super().__init__()
        self.attention_norm = norm_of(config)
        self.attention = SelfAttention(config.d_model, kind="encoder", **heads_of(config))
        self.feed_norm = norm_of(config)
        self.feed = feed_forward(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, hidden: Tensor, mask: KeyMask, relation: Relation | None) -> Tensor:
        attended = self.attention(self.attention_norm(hidden), mask, relation=relation)
        hidden = hidden + self.dropout(attended)
        return hidden + self.dropout(self.feed(self.feed_norm(hidden)))


class T5DecoderBlock(nn.Module):
    """x = x + attend(norm(x), relation); x = x + cross(norm(x), memory); x = x + feed(norm(x))"""

    def __init__(self, config: T5EncoderConfig):
        super().__init__()
        self.attention_norm = norm_of(config)
        self.attention = SelfAttention(config.d_model, kind="decoder", **heads_of(config))
        self.cross_norm = norm_of(config)
        self.cross = CrossAttention(config.d_model, **heads_of(config))
        self.feed_norm = norm_of(config)
        self.feed = feed_forward(config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask,
        relation: Relation | None,
        memory: Memory,
        cache: LayerCache | None = None,
    ) -> Tensor:
        attended = self.attention(self.attention_norm(hidden), mask, relation=relation, cache=cache)
        hidden = hidden + self.dropout(attended)
        hidden = hidden + self.dropout(self.cross(self.cross_norm(hidden), memory))
        return hidden + self.dropout(self.feed(self.feed_norm(hidden)))


class T5Encoder(nn.Module, protocols.Encoder, Prunable):
    """T5's encoder alone, an `Encoder` (T5EncoderModel in `transformers`)."""

    Config = T5EncoderConfig
    longest = protocols.LONGEST_ATTENDED
    blocks: Sequence[T5EncoderBlock]

    def __init__(self, config: T5EncoderConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.relative = positions_of(config, relative.two_sided_bucket, config.layers)
        blocks = nn.ModuleList(T5EncoderBlock(config) for _ in range(config.layers))
        self.blocks = cast("Sequence[T5EncoderBlock]", blocks)
        self.norm = norm_of(config)
        self.dropout = Dropout(config.dropout)
        init_t5(self, config)
        prune_as_configured(self, tuple(entry for entry in config.pruned if entry[0] == "encoder"))

    @classmethod
    def of(cls, model: T5) -> T5Encoder:
        """That of a whole model, with its weights."""
        names = {field.name for field in fields(T5EncoderConfig)}
        encoder = cls(
            T5EncoderConfig(**{k: v for k, v in asdict(model.config).items() if k in names})
        )
        encoder.load_state_dict(model.encoder.state_dict())
        return encoder

    def forward(self, batch: Sequences) -> protocols.Output:
        """Hidden states of the last layer, (B, T, D)."""
        return protocols.Output(self.encode(batch))

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> protocols.States:
        """The last norm follows the last layer."""
        hidden = self.dropout(self.embedding(batch.ids))
        yield hidden
        mask, relations = batch.padding_mask(), self.relative.of(batch)
        for n, block in enumerate(self.blocks[:-1]):
            hidden = block(hidden, mask, relations[n])
            yield hidden
        hidden = tokens.of(self.blocks[-1](hidden, mask, relations[-1]))
        yield self.dropout(self.norm(hidden))

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        width, dropout = self.config.d_model, self.config.dropout
        if kind in ("classes", "multiple_choice"):
            return dense_head(width, outputs, "tanh", pooling=mean_of_tokens, dropout=dropout)
        return token_head(self, kind, outputs, dropout=dropout)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """A </s> B </s>, where the tokenizer's file has no template."""
        (eos,) = tokenizer.required_ids("eos")
        return Template.around((), (eos,), (eos,))


class T5(nn.Module, protocols.CrossAttentionModel[TransformerState], Prunable):
    """T5: "Exploring the Limits of Transfer Learning" (Raffel et al. 2020).

    T5, an `EncoderDecoder`.
    """

    Config = T5Config
    SIZES: dict[str, dict[str, Any]] = {
        "small": _size(512, 2048, 8, 6) | dict(gated=False),
        "base": _size(768, 3072, 12, 12) | dict(gated=False),
        "large": _size(1024, 4096, 16, 24) | dict(gated=False),
        "3b": _size(1024, 16384, 32, 24, head_dim=128),
        "11b": _size(1024, 65536, 128, 24, head_dim=128),
        "1.1-small": _size(512, 1024, 6, 8) | _V1_1,
        "1.1-base": _size(768, 2048, 12, 12) | _V1_1,
        "1.1-large": _size(1024, 2816, 16, 24) | _V1_1,
        "1.1-xl": _size(2048, 5120, 32, 24) | _V1_1,
        "1.1-xxl": _size(4096, 10240, 64, 24) | _V1_1,
    }
    longest = protocols.LONGEST_ATTENDED
    decoder: Sequence[T5DecoderBlock]

    def __init__(self, config: T5Config):
        super().__init__()
        self.config = config
        self.encoder = T5Encoder(config)
        self.embedding = self.encoder.embedding  # of source and target
        self.relative = positions_of(config, relative.causal_bucket, config.decoder_layers)
        blocks = nn.ModuleList(T5DecoderBlock(config) for _ in range(config.decoder_layers))
        self.decoder = cast("Sequence[T5DecoderBlock]", blocks)
        self.decoder_norm = norm_of(config)
        self.dropout = Dropout(config.dropout)
        tied = self.embedding if config.tied else None
        self.head = Softmax(config.d_model, config.vocab_size, tied=tied, bias=False)
        self.output_scale = config.d_model**-0.5 if config.scale_output else 1.0
        for part in (self.relative, self.decoder):
            init_t5(cast(nn.Module, part), config)
        prune_as_configured(self, tuple(entry for entry in config.pruned if entry[0] != "encoder"))

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        return [*self.encoder.blocks, *self.decoder]

    @property
    def sharded_parts(self) -> list[nn.Module]:
        """See `Model`: the model itself reads the sources' keys and values by `block.cross`."""
        decoder_parts = [part for block in self.decoder for part in (block.attention, block.feed)]
        return [*self.encoder.blocks, *decoder_parts]

    def forward(self, source: Sequences, target: Sequences) -> protocols.Output:
        memory, hidden = self.encode(source), self.dropout(self.embedding(target.ids))
        mask, keys = target.causal_mask(), source.padding_mask(queries=target)
        relations = self.relative.of(target)
        for n, block in enumerate(self.decoder):
            hidden = block(hidden, mask, relations[n], block.cross.read(memory, keys))
        return protocols.Output(self.finish(hidden))

    def encode(self, source: Sequences) -> Tensor:
        """The encoder's states, (B, S, D)."""
        return self.encoder.encode(source)

    def source_encoder(self) -> T5Encoder:
        return self.encoder

    def initial_state(
        self, memory: Tensor, lengths: Tensor, dtype: torch.dtype | None = None
    ) -> TransformerState:
        """The state before the first target token, from the encoder's states (B, S, D)."""
        config = self.config
        layers = [block.cross.read(memory) for block in self.decoder]
        source = SourceMemory.of([(layer.key, layer.value) for layer in layers], lengths, dtype)
        sizes = config.decoder_layers, config.heads, config.head_dim
        return TransformerState(KeyValueCache.empty(len(lengths), *sizes, like=source.keys), source)

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        """Logits (B, T, V) of the token after each of the tokens (B, T), and the next state."""
        state.consume()
        count, source = tokens.size(1), state.source
        cache = state.cache.reserve(count)
        hidden = self.dropout(self.embedding(tokens))
        mask, keys = cache.mask(count), source.mask
        relations = self.relative.after(cache, count)
        for n, block in enumerate(self.decoder):
            key, value = source.layer(n, block.cross.heads)
            memory = Memory(key.to(hidden), value.to(hidden), keys)
            hidden = block(hidden, mask, relations[n], memory, cache.layer(n))
        return self.head.logits(self.finish(hidden)), TransformerState(cache.advance(count), source)

    def finish(self, hidden: Tensor) -> Tensor:
        """The final norm of the decoder and the output scale: (B, T, D), same."""
        return self.dropout(self.decoder_norm(hidden)) * self.output_scale


# --------------------------------------------------------------------------------------- parts


def norm_of(config: T5EncoderConfig) -> nn.RMSNorm:
    """x / sqrt(mean(x^2)), times a learned weight (Zhang & Sennrich 2019)."""
    return nn.RMSNorm(config.d_model, eps=config.norm_eps)


def heads_of(config: T5EncoderConfig) -> dict[str, Any]:
    """Arguments of every attention."""
    return dict(
        heads=config.heads,
        head_dim=config.head_dim,
        dropout=config.dropout,
        score=PLAIN,
        projection_bias=False,
    )


def feed_forward(config: T5EncoderConfig) -> FeedForward | GatedFeedForward:
    """The feed-forward layer of this configuration."""
    sizes = config.d_model, config.d_ff
    options: dict[str, Any] = dict(activation=config.activation, dropout=config.dropout)
    if config.gated:
        return GatedFeedForward(*sizes, **options)
    return FeedForward(*sizes, **options, bias=False)


def positions_of(
    config: T5EncoderConfig, bucket: relative.Bucket, layers: int
) -> relative.T5Positions:
    """The relative position biases of `layers` layers: one table for all, or one for each."""
    sizes = config.heads, bucket, config.buckets, config.max_distance
    count = layers if config.bias_per_layer else 1
    return relative.T5Positions(layers, [relative.RelativeBias(*sizes) for _ in range(count)])


def init_t5(module: nn.Module, config: T5EncoderConfig) -> None:
    """Normal deviations that keep the size of the sums, as in the published program; queries also
    make up for the scores that are not divided by sqrt(K).
    """
    width, scale = config.d_model**-0.5, config.init_scale
    inner = (config.heads * config.head_dim) ** -0.5
    for part in module.modules():
        if isinstance(part, SelfAttention):
            query, *others = part.query_key_value.weight.chunk(3)
        elif isinstance(part, CrossAttention):
            query, others = part.query.weight, [part.key_value.weight]
        if isinstance(part, SelfAttention | CrossAttention):
            nn.init.normal_(query, std=scale * width * config.head_dim**-0.5)
            for weight in others:
                nn.init.normal_(weight, std=scale * width)
            nn.init.normal_(part.output.weight, std=scale * inner)
        elif isinstance(part, FeedForward | GatedFeedForward):
            nn.init.normal_(part.inner.weight, std=scale * width)
            nn.init.normal_(part.outer.weight, std=scale * config.d_ff**-0.5)
        elif isinstance(part, relative.RelativeBias):
            nn.init.normal_(part.values.weight, std=scale * width)
        elif isinstance(part, nn.Embedding) and part.embedding_dim == config.d_model:
            nn.init.normal_(part.weight, std=scale)
