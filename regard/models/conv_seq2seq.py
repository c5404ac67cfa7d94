"""Convolutional encoder-decoders: ByteNet (2016) and ConvS2S (2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from regard.attention.attend import PLAIN, attend
from regard.attention.cache import SourceMemory
from regard.attention.capture import CapturePoint, ReshapedCapture
from regard.attention.multihead import share, unshare
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.layers.convolution import Buffers, Convolution
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.positions import LearnedPositions
from regard.layers.softmax import Softmax
from regard.models.config import (
    CONVOLUTIONAL,
    MOST_LAYERS,
    Count,
    Dilations,
    Filters,
    Probability,
    Size,
    TokenId,
)
from regard.models.protocols import EncoderDecoder, Output
from regard.state import State, TokensRead

# ------------------------------------------------------------------------------------------ ByteNet
#
#     source -> embed -> residual blocks of dilated convolutions -> a column for each position
#     target -> embed + column -> residual blocks of masked dilated convolutions -> output
#
# The decoder is stacked on the encoder: position t of the target reads column t. The encoder makes
# a S + b columns of S source tokens; later target positions have no column ("dynamic unfolding",
# section 3.2). The dilation doubles from block to block, and starts again in each set.


Ratio = Annotated[float, Field(gt=0, le=100)]


@dataclass(frozen=True)
class ByteNetConfig:
    """The defaults are the translator of section 5.2, of 30 blocks each in encoder and decoder.

    d_model: 2d of the paper, of embeddings, columns and what passes from block to block; the
        convolutions inside a block are half as wide.
    sets: how often the dilations are passed through, by encoder and decoder each.
    kernel: positions of a dilated convolution; odd.
    length_ratio, extra_columns: a and b; of S tokens the encoder makes ceil(a S + b) columns.
    max_length: None: a text of any length.
    bos: the token with which the decoder starts.
    """

    vocab_size: Size  # of both languages together
    d_model: Size = 1600
    dilations: Dilations = (1, 2, 4, 8, 16)
    sets: Size = 6
    kernel: Size = 3
    length_ratio: Ratio = 1.2
    extra_columns: Count = 0
    dropout: Probability = 0.0
    max_length: Size | None = None
    pad: TokenId = 0
    bos: TokenId = 1
    eos: TokenId = 2


class ResidualBlock(nn.Module):
    """x + W_out relu(norm(W relu(norm(W_in relu(norm(x)))))), W a convolution (section 3.6, figure
    3); the norm is that of layers.
    """

    def __init__(self, config: ByteNetConfig, dilation: int):
        super().__init__()
        width, inner = config.d_model, config.d_model // 2
        self.norm, self.reduce = nn.LayerNorm(width), Linear(width, inner)
        self.inner_norm = nn.LayerNorm(inner)
        self.convolution = Convolution(inner, inner, config.kernel, dilation)
        self.outer_norm = nn.LayerNorm(inner)
        self.dropout, self.expand = Dropout(config.dropout), Linear(inner, width)

    def inner(self, x: Tensor) -> Tensor:
        """The input of the dilated convolution: (B, T, 2d) -> (B, T, d)."""
        return torch.relu(self.inner_norm(self.reduce(torch.relu(self.norm(x)))))

    def outer(self, x: Tensor, convolved: Tensor) -> Tensor:
        """The output of the block, (B, T, 2d), from its input and the convolution of `inner`, (B,
        T, d).
        """
        return x + self.dropout(self.expand(torch.relu(self.outer_norm(convolved))))


def blocks(config: ByteNetConfig) -> Sequence[ResidualBlock]:
    """The residual blocks of an encoder or a decoder."""
    modules = nn.ModuleList(
        ResidualBlock(config, dilation) for _ in range(config.sets) for dilation in config.dilations
    )
    return cast("Sequence[ResidualBlock]", modules)


@dataclass
class ByteNetState(State):
    """The last inputs of each dilated convolution (B, C), the encoder's columns, and how many
    tokens were read.

    columns: the values of a source (N, L=1, H=1, S' + 1, 2d), without keys: target position t reads
        column t. After the last column of each source there are zeros.
    """

    inputs: Tensor
    columns: SourceMemory
    read: TokensRead


class ByteNet(nn.Module, EncoderDecoder[ByteNetState]):
    """ByteNet: "Neural Machine Translation in Linear Time" (Kalchbrenner et al. 2016).

    The `EncoderDecoder` without attention whose time is linear in the lengths.

    Raises:
        ConfigError: the width or the kernel cannot be halved as they must, there is no dilation, or
            there are too many blocks.
    """

    Config = ByteNetConfig
    family = CONVOLUTIONAL
    SIZES = {
        "tiny": dict(d_model=256, dilations=(1, 2, 4, 8), sets=1, dropout=0.1),
        "wmt14-en-de": dict(d_model=1600, sets=6),
    }

    def __init__(self, config: ByteNetConfig):
        super().__init__()
        check_blocks(config)
        self.config = config
        width = config.d_model
        self.embedding = nn.Embedding(config.vocab_size, width)
        # As large as a column, which is a sum over the encoder's blocks: of vectors much smaller
        # than the columns that are added to them, the decoder would learn words late.
        nn.init.normal_(self.embedding.weight, std=1.0)
        self.dropout = Dropout(config.dropout)
        self.encoder, self.decoder = blocks(config), blocks(config)
        # The paper does not say how: here the column is added to the input of the first block.
        self.column = Linear(width, width, bias=False)
        self.output_norm, self.output = nn.LayerNorm(width), Linear(width, width)
        self.head = Softmax(width, config.vocab_size, tied=None, bias=True)

    def forward(self, source: Sequences, target: Sequences) -> Output:
        """Hidden states (B, T, D); source and target must be padded."""
        hidden, _ = self._decode(target.ids, self.read(source))
        return Output(hidden)

    def read(self, source: Sequences) -> ByteNetState:
        """The state before the first target token."""
        columns = self._columns(source)
        inputs = Buffers.empty(self._masked, len(source), columns)
        values = nn.functional.pad(columns, (0, 0, 0, 1))[:, None, None]
        memory = SourceMemory(values[..., :0], values, unfolded(source.lengths, self.config))
        return ByteNetState(inputs, memory, TokensRead.start(len(source), inputs.device))

    def step(self, tokens: Tensor, state: ByteNetState) -> tuple[Tensor, ByteNetState]:
        """Logits (B, T, V) of the token after each of the tokens (B, T), and the next state."""
        state.consume()
        hidden, state = self._decode(tokens, state)
        return self.head.logits(hidden), state

    @property
    def _masked(self) -> list[Convolution]:
        return [block.convolution for block in self.decoder]

    def _columns(self, source: Sequences) -> Tensor:
        """The encoder's columns (B, S', 2d); a source with more columns than tokens is padded."""
        config = self.config
        lengths = unfolded(source.lengths, config)
        width = math.ceil(config.length_ratio * source.width + config.extra_columns)
        ids = source.ids.new_full((len(source), max(width, source.width)), config.pad)
        ids[:, : source.width] = source.ids.masked_fill(~source.keep, config.pad)
        keep = torch.arange(ids.size(1), device=ids.device) < lengths[:, None]
        x = self.dropout(self.embedding(ids))
        for block in self.encoder:
            x = block.outer(x, block.convolution.centered(block.inner(x), keep))
        return self.column(x).masked_fill(~keep[..., None], 0.0)

    def _decode(self, ids: Tensor, state: ByteNetState) -> tuple[Tensor, ByteNetState]:
        """Hidden states (B, T, 2d), and the state after these tokens (B, T)."""
        buffers, read = Buffers(self._masked, state.inputs), state.read
        x = self.dropout(self.embedding(ids)) + columns_of(state.columns, read, ids.size(1))
        for block in self.decoder:
            x = block.outer(x, block.convolution(buffers.extend(block.inner(x))))
        hidden = torch.relu(self.output(torch.relu(self.output_norm(x))))
        return hidden, ByteNetState(buffers.after, state.columns, read.advance(ids.size(1)))


def columns_of(memory: SourceMemory, read: TokensRead, count: int) -> Tensor:
    """The columns of the next `count` target positions, (B, T, 2d); zeros after the last column."""
    _, values = memory.layer(0)  # (N, H=1, S' + 1, 2d), of which the last are zeros
    columns, width = values[:, 0], values.size(2)
    if (
        read.equal_lengths
    ):  # a slice, which is faster than a look-up, above all in the backward pass
        part = columns[:, read.longest : read.longest + count]
        part = nn.functional.pad(part, (0, 0, 0, count - part.size(1)))
        return part.repeat_interleave(memory.sharing, 0) if memory.sharing > 1 else part
    at = read.positions(count).clamp(max=width - 1)
    row = torch.arange(at.size(0), device=at.device)[:, None] // memory.sharing
    return columns[row, at]


def unfolded(lengths: Tensor, config: ByteNetConfig) -> Tensor:
    """The number of columns of sources with these lengths S: max(S, ceil(a S + b)), (B,)."""
    columns = torch.ceil(config.length_ratio * lengths.double() + config.extra_columns).long()
    return torch.maximum(columns, lengths)


def check_blocks(config: ByteNetConfig) -> None:
    """Check what a block needs.

    Raises:
        ConfigError: an odd width, an even kernel, no dilations or too many blocks.
    """
    if config.d_model % 2:
        raise ConfigError(f"`d_model` must be even, but is {config.d_model}: blocks halve it.")
    if config.kernel % 2 == 0:
        raise ConfigError(
            f"`kernel` must be odd, to have a middle in the encoder: {config.kernel}."
        )
    if not config.dilations:
        raise ConfigError("`dilations` must name at least one: of the blocks of a set.")
    if (count := config.sets * len(config.dilations)) > MOST_LAYERS:
        raise ConfigError(
            f"`sets` of `dilations` must make at most {MOST_LAYERS:,} blocks, but make {count:,}."
        )


# ------------------------------------------------------------------------------------------ ConvS2S
#
#     source -> words + positions -> M x [gated convolution] -> z, read as keys z and values z + e
#     target -> words + positions -> N x [gated causal convolution, attention] -> output
#
# Every sum of two terms, but of words and positions, is multiplied by sqrt(0.5), which keeps its
# variance: that of a block as in section 3.4, those around attention as in the authors' program.


@dataclass(frozen=True)
class ConvSeq2SeqConfig:
    """The defaults are the model for English and Romanian of sections 4.2 and 5.1.

    encoder, decoder: kernel and width of each layer, from the input up; a kernel of the encoder is
        odd.
    d_model: of embeddings, keys and values, and of what the output reads.
    max_length: positions that are learned, of source and target each.
    tied: whether the embedding is the output's weight too.
    bos: the token with which the decoder starts.
    """

    vocab_size: Size  # of both languages together
    d_model: Size = 512
    encoder: Filters = ((3, 512),) * 20
    decoder: Filters = ((3, 512),) * 20
    dropout: Probability = 0.2
    tied: bool = False
    max_length: Size = 1024
    pad: TokenId = 0
    bos: TokenId = 1
    eos: TokenId = 2


# As in the authors' program (fairseq). Section 5.1 prints ten layers of 512 and three of 768 before
# the two of 2,048, and section 4.2 embeddings of 512.
_GERMAN = ((3, 512),) * 9 + ((3, 1024),) * 4 + ((1, 2048),) * 2


def scaled_sum(a: Tensor, b: Tensor) -> Tensor:
    """(a + b) sqrt(0.5), which has the variance of its terms."""
    return (a + b) * math.sqrt(0.5)


def normalized(linear: nn.Module, gated: bool = False, dropout: float = 0.0) -> nn.Module:
    """A linear layer with weight normalization and the paper's initialization: normal with variance
    p/n, or 4p/n before a gate, for n inputs that dropout retains with probability p (section 3.5).
    """
    weight = cast("Linear", linear).weight
    variance = (4.0 if gated else 1.0) * (1.0 - dropout) / weight.size(1)
    nn.init.normal_(weight, std=math.sqrt(variance))
    nn.init.zeros_(cast("Linear", linear).bias)
    return weight_norm(linear)


class GatedConvolution(nn.Module):
    """h' = (GLU(conv(drop(h))) + h) sqrt(0.5), GLU([a; b]) = a sigmoid(b)  (section 3.2)

    `residual` projects h where the widths differ.
    """

    def __init__(self, d_in: int, kernel: int, width: int, dropout: float):
        super().__init__()
        self.dropout = Dropout(dropout)
        self.convolution = Convolution(d_in, 2 * width, kernel)
        self.convolution.linear = normalized(self.convolution.linear, gated=True, dropout=dropout)
        same = d_in == width
        self.residual = nn.Identity() if same else normalized(Linear(d_in, width))

    def forward(self, hidden: Tensor, keep: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, D'), reading both sides; `keep` as of `Convolution.centered`."""
        gated = F.glu(self.convolution.centered(self.dropout(hidden), keep), -1)
        return scaled_sum(gated, self.residual(hidden))


class ConvDecoderBlock(GatedConvolution):
    """Gated causal convolution, and attention to the source between the gate and the sum."""

    def __init__(self, d_in: int, kernel: int, width: int, config: ConvSeq2SeqConfig):
        super().__init__(d_in, kernel, width, config.dropout)
        self.query = normalized(Linear(width, config.d_model))
        self.context = normalized(Linear(config.d_model, width))
        self.capture = CapturePoint("cross")

    def forward(  # type: ignore[override]
        self, hidden: Tensor, words: Tensor, source: SourceMemory, buffers: Buffers
    ) -> Tensor:
        """(B, T, D) -> (B, T, D'); `words` (B, T, E) are the embeddings g of the target."""
        gated = F.glu(self.convolution(buffers.extend(self.dropout(hidden))), -1)
        query = scaled_sum(self.query(gated), words)  # d = W_d h + b_d + g, equation 1
        gated = scaled_sum(gated, self.context(self.attend(query, source)))
        return scaled_sum(gated, self.residual(hidden))

    def attend(self, query: Tensor, source: SourceMemory) -> Tensor:
        """c = m sqrt(1/m) sum over j of a_j (z_j + e_j), of m source tokens: (B, T, E)."""
        rows, (keys, values) = query.size(0), source.layer(0)  # (N, H=1, S, E)
        context = attend(
            share(query[:, None], keys.size(0)),  # (B, T, E) -> (N, H=1, B/N * T, E)
            keys.to(query),
            values.to(query),
            score=PLAIN,
            mask=source.mask,
            capture=ReshapedCapture(self.capture, partial(unshare, rows=rows)),
        )
        # The mean of m values of equal weights has 1/m of their variance (section 3.4).
        scale = source.lengths.to(query.dtype).sqrt()[:, None, None, None]
        return unshare(context * scale, rows)[:, 0]


class ConvEncoder(nn.Module):
    """The encoder: the keys and values of a source."""

    def __init__(self, config: ConvSeq2SeqConfig):
        super().__init__()
        widths = [width for _, width in config.encoder]
        self.input = normalized(Linear(config.d_model, widths[0]), dropout=config.dropout)
        blocks = nn.ModuleList(
            GatedConvolution(d_in, kernel, width, config.dropout)
            for d_in, (kernel, width) in zip([widths[0], *widths], config.encoder, strict=False)
        )
        self.blocks = cast("Sequence[GatedConvolution]", blocks)
        self.output = normalized(Linear(widths[-1], config.d_model))
        self.attentions = len(config.decoder)

    def forward(self, words: Tensor, source: Sequences) -> SourceMemory:
        """From the embeddings e (B, S, E): keys z and values (z + e) sqrt(0.5)."""
        keep, hidden = source.keep, self.input(words)
        for block in self.blocks:
            hidden = block(hidden, keep)
        keys = self.output(hidden)
        if keys.requires_grad:
            # Each attention of the decoder adds a gradient; their mean goes on into the encoder,
            # but not into the embedding (section 3.4). The authors' program halves it once more.
            keys.register_hook(lambda gradient: gradient / self.attentions)
        values = scaled_sum(keys, words)
        return SourceMemory(keys[:, None, None], values[:, None, None], source.lengths)


class ConvDecoder(nn.Module):
    """The decoder over all positions of a target, or over the next ones."""

    def __init__(self, config: ConvSeq2SeqConfig):
        super().__init__()
        widths = [width for _, width in config.decoder]
        self.input = normalized(Linear(config.d_model, widths[0]), dropout=config.dropout)
        blocks = nn.ModuleList(
            ConvDecoderBlock(d_in, kernel, width, config)
            for d_in, (kernel, width) in zip([widths[0], *widths], config.decoder, strict=False)
        )
        self.blocks = cast("Sequence[ConvDecoderBlock]", blocks)
        self.output = normalized(Linear(widths[-1], config.d_model))

    @property
    def convolutions(self) -> list[Convolution]:
        """The convolutions whose last inputs are in the state, from the input up."""
        return [block.convolution for block in self.blocks]

    def forward(self, words: Tensor, state: ConvSeq2SeqState) -> tuple[Tensor, ConvSeq2SeqState]:
        """(B, T, E) -> (B, T, E), and the state after these positions."""
        buffers, hidden = Buffers(self.convolutions, state.inputs), self.input(words)
        for block in self.blocks:
            hidden = block(hidden, words, state.source, buffers)
        read = state.read.advance(words.size(1))
        return self.output(hidden), ConvSeq2SeqState(buffers.after, state.source, read)


@dataclass
class ConvSeq2SeqState(State):
    """The last k - 1 inputs of each layer (B, C), the source, and how many tokens were read."""

    inputs: Tensor
    source: SourceMemory
    read: TokensRead


class ConvSeq2Seq(nn.Module, EncoderDecoder[ConvSeq2SeqState]):
    """Convolutional sequence to sequence learning, ConvS2S (Gehring et al. 2017).

    The convolutional `EncoderDecoder` with attention in every layer of the decoder.

    Raises:
        ConfigError: there are no layers, or a kernel of the encoder is even.
    """

    Config = ConvSeq2SeqConfig
    family = CONVOLUTIONAL
    SIZES = {
        "tiny": dict(d_model=128, encoder=((3, 128),) * 4, decoder=((3, 128),) * 3),
        "wmt16-en-ro": dict(d_model=512, encoder=((3, 512),) * 20, decoder=((3, 512),) * 20),
        "wmt14-en-de": dict(d_model=768, encoder=_GERMAN, decoder=_GERMAN),
    }

    def __init__(self, config: ConvSeq2SeqConfig):
        super().__init__()
        check_layers(config)
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.source_positions = LearnedPositions(config.max_length, config.d_model)
        self.target_positions = LearnedPositions(config.max_length, config.d_model)
        for table in (self.embedding, self.source_positions.vectors, self.target_positions.vectors):
            nn.init.normal_(table.weight, std=0.1)
        self.encoder, self.decoder = ConvEncoder(config), ConvDecoder(config)
        self.dropout = Dropout(config.dropout)
        tied = self.embedding if config.tied else None
        self.head = Softmax(config.d_model, config.vocab_size, tied=tied, bias=True)
        if tied is None:
            nn.init.normal_(self.head.weight, std=math.sqrt((1 - config.dropout) / config.d_model))

    def forward(self, source: Sequences, target: Sequences) -> Output:
        """See `EncoderDecoder`; both must be padded.

        Raises:
            ValueError: a text is longer than the model has positions for.
        """
        state = self.read(source)
        hidden, _ = self.decoder(self._embed(target.ids, state.read), state)
        return Output(self.dropout(hidden))

    def read(self, source: Sequences) -> ConvSeq2SeqState:
        """The state before the first target token."""
        words = self.embedding(source.ids) + self.source_positions.of(source)
        memory = self.encoder(self.dropout(words), source)
        inputs = Buffers.empty(self.decoder.convolutions, len(source), memory.keys)
        return ConvSeq2SeqState(inputs, memory, TokensRead.start(len(source), inputs.device))

    def step(self, tokens: Tensor, state: ConvSeq2SeqState) -> tuple[Tensor, ConvSeq2SeqState]:
        """Logits (B, T, V) of the token after each of the tokens (B, T), and the next state."""
        state.consume()
        hidden, state = self.decoder(self._embed(tokens, state.read), state)
        return self.head.logits(self.dropout(hidden)), state

    def _embed(self, ids: Tensor, read: TokensRead) -> Tensor:
        positions = self.target_positions.after(read, ids.size(1))
        return self.dropout(self.embedding(ids) + positions)


def check_layers(config: ConvSeq2SeqConfig) -> None:
    """Check that there are layers, whose kernels have a middle in the encoder.

    Raises:
        ConfigError: there are none, or one has none.
    """
    for name in ("encoder", "decoder"):
        if not vars(config)[name]:
            raise ConfigError(f"`{name}` must have at least one layer: [[kernel, width], ...].")
    for kernel, _ in config.encoder:
        if kernel % 2 == 0:
            raise ConfigError(f"A kernel of `encoder` must be odd, to have a middle: {kernel}.")
