"""The Transformer: "Attention Is All You Need" (Vaswani et al. 2017).

    source -> embed + positions -> N x [self-attention, feed-forward] -> memory
    target -> embed + positions -> N x [masked self-attention, cross-attention, feed-forward]

Each sub-layer is followed by dropout, the residual sum and a layer norm ("post-norm"). One
embedding serves source, target and output (section 3.4), unless the configuration says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from regard.attention.attend import Relation
from regard.attention.cache import KeyValueCache, SourceMemory
from regard.attention.multihead import CrossAttention, LayerCache, Memory, SelfAttention
from regard.attention.pruning import Prunable, Pruned, prune_as_configured
from regard.attention.relative import absolute_positions, reads_unpadded, relative_positions
from regard.data.batches import ALL, Sequences, TokenSubset
from regard.data.images import regions_of
from regard.errors import ConfigError
from regard.layers.dropout import AddNorm, Dropout
from regard.layers.feedforward import FeedForward
from regard.layers.linear import Linear
from regard.layers.positions import PositionTable, SinusoidalPositions, sinusoid_in_halves
from regard.layers.softmax import Softmax
from regard.layers.task_heads import init_weights, no_head
from regard.models.config import Activation, EncoderPositions, Probability, Size, TokenId
from regard.models.protocols import CrossAttentionModel, Encoder, Output, States
from regard.ops import KeyMask
from regard.state import State
from regard.text.templates import Template


@dataclass(frozen=True)
class TransformerConfig:
    """Names as in table 3 of the paper; the defaults are its base model.

    positions: one of the kinds of `regard.models.config`. Source and target share absolute
        positions, but not relative ones; where those of the source are in a dependency tree, those
        of the target are sinusoidal.
    clip_distance: distances beyond it share a vector (kinds "shaw" and "dependency-relative");
        None: 16.
    bos: the token with which the decoder starts.
    pruned: heads that were pruned, as `regard.attention.pruning.prune_heads` records them.
    decoder_d_ff: width inside the decoder's feed-forward layers; None: that of the encoder.
    decoder_heads: attention heads of the decoder's layers; None: those of the encoder.
    scale_embedding: whether embeddings are multiplied by sqrt(d_model) (section 3.4).
    output_bias: whether the output adds a bias to the logits, as published translators do.
    source_vocab_size: tokens of sources that have a vocabulary and an embedding of their own;
        `vocab_size` is then that of targets. None: they share it.
    tied: whether the embedding of targets is the output too (section 3.4).
    """

    vocab_size: Size
    d_model: Size = 512
    d_ff: Size = 2048
    heads: Size = 8
    encoder_layers: Size = 6
    decoder_layers: Size = 6
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    activation_dropout: Probability = 0.0
    activation: Activation = "relu"
    positions: EncoderPositions = "sinusoidal"
    clip_distance: Size | None = None
    max_length: Size = 1024
    pad: TokenId = 0
    bos: TokenId = 1
    eos: TokenId = 2
    pruned: Pruned = ()
    decoder_d_ff: Size | None = None
    decoder_heads: Size | None = None
    scale_embedding: bool = True
    output_bias: bool = False
    source_vocab_size: Size | None = None
    tied: bool = True

    @property
    def decoder(self) -> TransformerConfig:
        """The same, with the decoder's sizes as `d_ff` and `heads`, and its positions."""
        d_ff, heads = self.decoder_d_ff or self.d_ff, self.decoder_heads or self.heads
        # No tree is known of a text to come.
        trees = self.positions.startswith("dependency")
        positions: EncoderPositions = "sinusoidal" if trees else self.positions
        clip_distance = self.clip_distance if positions == self.positions else None
        return replace(
            self, d_ff=d_ff, heads=heads, positions=positions, clip_distance=clip_distance
        )


def add_norm(config: TransformerConfig) -> nn.LayerNorm:
    """norm(x + drop(f(x))), after each sub-layer f."""
    return AddNorm(config.d_model, dropout=config.dropout)


class EncoderBlock(nn.Module):
    """x = norm(x + attend(x)); x = norm(x + feed(x))"""

    norm = staticmethod(add_norm)

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.attention = SelfAttention(
            config.d_model, config.heads, kind="encoder", dropout=config.attention_dropout
        )
        self.attention_norm = self.norm(config)
        self.feed = feed_forward(config)
        self.feed_norm = self.norm(config)

    def forward(self, hidden: Tensor, mask: KeyMask, relation: Relation | None = None) -> Tensor:
        attended = self.attention(hidden, mask, relation=relation)
        hidden = self.attention_norm(hidden, attended)
        return self.feed_norm(hidden, self.feed(hidden))


class DecoderBlock(nn.Module):
    """x = norm(x + attend(x)); x = norm(x + cross(x, memory)); x = norm(x + feed(x))"""

    norm = staticmethod(add_norm)

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.attention = SelfAttention(
            config.d_model, config.heads, kind="decoder", dropout=config.attention_dropout
        )
        self.attention_norm = self.norm(config)
        self.cross = CrossAttention(config.d_model, config.heads, dropout=config.attention_dropout)
        self.cross_norm = self.norm(config)
        self.feed = feed_forward(config)
        self.feed_norm = self.norm(config)

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask,
        memory: Memory,
        *,
        relation: Relation | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        attended = self.attention(hidden, mask, relation=relation, cache=cache)
        hidden = self.attention_norm(hidden, attended)
        hidden = self.cross_norm(hidden, self.cross(hidden, memory))
        return self.feed_norm(hidden, self.feed(hidden))


@dataclass
class TransformerState(State):
    """Keys and values of the target so far, and of the source."""

    cache: KeyValueCache
    source: SourceMemory


class Transformer(nn.Module, CrossAttentionModel[TransformerState], Prunable):
    """The Transformer: "Attention Is All You Need" (Vaswani et al. 2017).

    The post-norm Transformer, an `EncoderDecoder`.
    """

    Config: type[TransformerConfig] = TransformerConfig
    SIZES = {
        "tiny": dict(
            d_model=128, d_ff=256, heads=4, encoder_layers=4, decoder_layers=4, dropout=0.3
        ),
        "base": dict(
            d_model=512, d_ff=2048, heads=8, encoder_layers=6, decoder_layers=6, dropout=0.1
        ),
        "big": dict(
            d_model=1024, d_ff=4096, heads=16, encoder_layers=6, decoder_layers=6, dropout=0.3
        ),
    }
    # size -> quantity -> the printed figure, where it stands and why ours differs
    unpadded = True
    encoder_block: type[EncoderBlock] = EncoderBlock
    decoder_block: type[DecoderBlock] = DecoderBlock

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.source_embedding: nn.Embedding | None = None  # that of targets
        if config.source_vocab_size is not None:
            self.source_embedding = nn.Embedding(config.source_vocab_size, config.d_model)
            nn.init.normal_(self.source_embedding.weight, std=config.d_model**-0.5)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        # Section 3.4: the embedding is scaled up to the size of the positions.
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.positions = absolute_positions(config)
        self.decoder_positions: PositionTable | None = None  # those of the source
        if config.decoder.positions != config.positions:
            self.decoder_positions = absolute_positions(config.decoder)
        self.encoder_relations = relative_positions(config, config.encoder_layers)
        self.decoder_relations = relative_positions(
            config.decoder, config.decoder_layers, causal=True
        )
        for part in (self.positions, self.encoder_relations, self.decoder_relations):
            init_weights(part, config.d_model**-0.5)
        self.unpadded = reads_unpadded(config)
        self.dropout = Dropout(config.dropout)
        encoder, decoder = self.encoder_block, self.decoder_block
        encoders = nn.ModuleList(encoder(config) for _ in range(config.encoder_layers))
        decoders = nn.ModuleList(decoder(config.decoder) for _ in range(config.decoder_layers))
        self.encoder = cast("Sequence[EncoderBlock]", encoders)
        self.decoder = cast("Sequence[DecoderBlock]", decoders)
        tied = self.embedding if config.tied else None
        self.head = Softmax(config.d_model, config.vocab_size, tied=tied, bias=config.output_bias)
        prune_as_configured(self, config.pruned)

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        return [*self.encoder, *self.decoder]

    @property
    def sharded_parts(self) -> list[nn.Module]:
        """See `Model`: the model itself reads the sources' keys and values by `block.cross`."""
        decoder_parts = [part for block in self.decoder for part in (block.attention, block.feed)]
        return [*self.encoder, *decoder_parts]

    def forward(self, source: Sequences, target: Sequences) -> Output:
        for hidden in self.target_states(source, target):  # noqa: B007
            pass
        return Output(self.finish_decoder(hidden))

    def target_states(self, source: Sequences, target: Sequences) -> States:
        """Hidden states of the target's embeddings, then those that each layer gives."""
        memory = self.encode(source)
        hidden = self.embed_target(target.ids, self.target_positions.of(target))
        yield hidden
        mask, keys = target.causal_mask(), source.padding_mask(queries=target)
        for block, relation in zip(self.decoder, self.decoder_relations.of(target), strict=True):
            hidden = block(hidden, mask, block.cross.read(memory, keys), relation=relation)
            yield hidden

    def encode(self, source: Sequences) -> Tensor:
        """The encoder's states, (B, S, D), or (1, N, D) of an unpadded batch."""
        for hidden in self.source_states(source):  # noqa: B007
            pass
        return self.finish_encoder(hidden)

    def source_states(self, source: Sequences) -> States:
        """Hidden states of the source's embeddings, then those that each layer gives."""
        hidden, mask = self.embed_source(source), source.padding_mask()
        yield hidden
        for block, relation in zip(self.encoder, self.encoder_relations.of(source), strict=True):
            hidden = block(hidden, mask, relation)
            yield hidden

    @property
    def source_vocab_size(self) -> int:
        size = self.config.source_vocab_size
        return super().source_vocab_size if size is None else size

    def source_encoder(self) -> SourceEncoder:
        return SourceEncoder(self)

    @property
    def target_positions(self) -> PositionTable:
        """The positions of targets."""
        return self.positions if self.decoder_positions is None else self.decoder_positions

    @property
    def words_of_source(self) -> nn.Embedding:
        """The embedding of sources."""
        return self.embedding if self.source_embedding is None else self.source_embedding

    def embed_source(self, source: Sequences) -> Tensor:
        """Scaled token + position, (B, S, D) or (1, N, D)."""
        words = self.words_of_source(source.ids)
        return self.dropout(words * self.scale + self.positions.of(source))

    def embed_target(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Scaled token + position, (B, T, D) or (1, N, D).

        positions: their vectors, (T, D) or as the result.
        """
        return self.dropout(self.embedding(ids) * self.scale + positions)

    def initial_state(
        self, memory: Tensor, lengths: Tensor, dtype: torch.dtype | None = None
    ) -> TransformerState:
        """The state before the first target token, from the encoder's states (B, S, D)."""
        config = self.config
        layers = [block.cross.read(memory) for block in self.decoder]
        source = SourceMemory.of([(layer.key, layer.value) for layer in layers], lengths, dtype)
        heads = config.decoder.heads
        sizes = config.decoder_layers, heads, config.d_model // heads
        return TransformerState(KeyValueCache.empty(len(lengths), *sizes, like=source.keys), source)

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        """Logits (B, T, V) of the token after each of the tokens (B, T), and the next state."""
        state.consume()
        count, source = tokens.size(1), state.source
        cache = state.cache.reserve(count)
        hidden = self.embed_target(tokens, self.target_positions.after(cache, count))
        mask, keys = cache.mask(count), source.mask
        relations = self.decoder_relations.after(cache, count)
        for n, block in enumerate(self.decoder):
            key, value = source.layer(n, block.cross.heads)
            memory = Memory(key.to(hidden), value.to(hidden), keys)
            hidden = block(hidden, mask, memory, relation=relations[n], cache=cache.layer(n))
        logits = self.head.logits(self.finish_decoder(hidden))
        return logits, TransformerState(cache.advance(count), source)

    def finish_encoder(self, hidden: Tensor) -> Tensor:
        """The part after the last block of the encoder, (B, S, D), same: here nothing."""
        return hidden

    def finish_decoder(self, hidden: Tensor) -> Tensor:
        """The part after the last block of the decoder, (B, T, D), same: here nothing."""
        return hidden


class SourceEncoder(nn.Module, Encoder, Prunable):
    """The encoder of a Transformer as an `Encoder`: its texts are sources."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model, self.config = model, model.config
        self.embedding = model.words_of_source

    def forward(self, batch: Sequences) -> Output:
        """Hidden states of the last layer, (B, T, D)."""
        return Output(self.encode(batch))

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        """The last layer includes `finish_encoder`."""
        last = self.config.encoder_layers
        for n, hidden in enumerate(self.model.source_states(batch)):
            yield tokens.of(self.model.finish_encoder(hidden)) if n == last else hidden

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        raise no_head(self, kind, ())

    def template(self, tokenizer: Any) -> Template:
        """A </s> B </s>, where the tokenizer's file has no template."""
        (eos,) = tokenizer.required_ids("eos")
        return Template.around((), (eos,), (eos,))


def feed_forward(config: TransformerConfig) -> FeedForward:
    """The feed-forward layer of this configuration."""
    return FeedForward(
        config.d_model,
        config.d_ff,
        activation=config.activation,
        dropout=config.activation_dropout,
    )


# ------------------------------------------------------------------ norms before the parts, M2M-100
#
# The Transformer with layer norms before its parts, and M2M-100 (Fan et al. 2020).


def plain_norm(config: TransformerConfig) -> nn.LayerNorm:
    """norm(x), before each sub-layer; the sum is another part's."""
    return nn.LayerNorm(config.d_model)


class PreNormEncoderBlock(EncoderBlock):
    """x = x + attend(norm(x)); x = x + feed(norm(x))"""

    norm = staticmethod(plain_norm)

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, hidden: Tensor, mask: KeyMask, relation: Relation | None = None) -> Tensor:
        attended = self.attention(self.attention_norm(hidden), mask, relation=relation)
        hidden = hidden + self.dropout(attended)
        return hidden + self.dropout(self.feed(self.feed_norm(hidden)))


class PreNormDecoderBlock(DecoderBlock):
    """x = x + attend(norm(x)); x = x + cross(norm(x), memory); x = x + feed(norm(x))"""

    norm = staticmethod(plain_norm)

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask,
        memory: Memory,
        *,
        relation: Relation | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        normed = self.attention_norm(hidden)
        attended = self.attention(normed, mask, relation=relation, cache=cache)
        hidden = hidden + self.dropout(attended)
        hidden = hidden + self.dropout(self.cross(self.cross_norm(hidden), memory))
        return hidden + self.dropout(self.feed(self.feed_norm(hidden)))


class PreNormTransformer(Transformer):
    """The Transformer with layer norms before its parts.

    The pre-norm Transformer, an `EncoderDecoder`.
    """

    encoder_block = PreNormEncoderBlock
    decoder_block = PreNormDecoderBlock

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        self.encoder_norm = nn.LayerNorm(config.d_model)
        self.decoder_norm = nn.LayerNorm(config.d_model)

    def finish_encoder(self, hidden: Tensor) -> Tensor:
        """The final norm: (B, T, D), same."""
        return self.encoder_norm(hidden)

    def finish_decoder(self, hidden: Tensor) -> Tensor:
        """The final norm: (B, T, D), same."""
        return self.decoder_norm(hidden)


@dataclass(frozen=True)
class M2M100Config(TransformerConfig):
    """The defaults are the model of 418M parameters; see `TransformerConfig`."""

    d_model: Size = 1024
    d_ff: Size = 4096
    heads: Size = 16
    encoder_layers: Size = 12
    decoder_layers: Size = 12
    attention_dropout: Probability = 0.1
    positions: Literal["sinusoidal"] = "sinusoidal"
    pad: TokenId = 1
    bos: TokenId = 2
    eos: TokenId = 2


def counted_from(first: int, positions: Tensor, d_model: int) -> Tensor:
    """`sinusoid_in_halves`, where `first` is the first position: (N,) -> (N, D)."""
    return sinusoid_in_halves(positions + first, d_model)


class M2M100(PreNormTransformer):
    """M2M-100 and NLLB, an `EncoderDecoder`."""

    Config = M2M100Config
    SIZES = {}  # noqa: RUF012

    def __init__(self, config: M2M100Config):
        super().__init__(config)
        vectors = partial(counted_from, config.pad + 1)
        self.positions = SinusoidalPositions(config.d_model, vectors)


# ------------------------------------------------------------------------------ regions of an image
#
#     region -> linear + position in the image -> encoder -> decoder, as of any Transformer
#
# Positions count the regions row by row.


@dataclass(frozen=True)
class RegionTransformerConfig(TransformerConfig):
    """d_region: of the vector of a region.  The others are those of `TransformerConfig`."""

    d_region: Size = 1280

    def __post_init__(self) -> None:
        if self.source_vocab_size is not None:
            raise ConfigError("`source_vocab_size` has no effect: the source has no tokens.")


class RegionTransformer(PreNormTransformer):
    """The Transformer as a captioner: the pre-norm encoder-decoder over the regions of an image.

    An `EncoderDecoder` whose source is the regions of an image.
    """

    Config: type[TransformerConfig] = RegionTransformerConfig
    reads_regions = True

    def __init__(self, config: RegionTransformerConfig):
        super().__init__(config)
        self.regions = Linear(config.d_region, config.d_model)

    def embed_source(self, source: Sequences) -> Tensor:
        """Linear of the region + position, (B, S, D) or (1, N, D)."""
        regions = self.regions(regions_of(source, self.encoder_norm.weight))
        return self.dropout(regions + self.positions.of(source))
