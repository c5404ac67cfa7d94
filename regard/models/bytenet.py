"""ByteNet: "Neural Machine Translation in Linear Time" (Kalchbrenner et al. 2016).

    source -> embed -> residual blocks of dilated convolutions -> a column for each position
    target -> embed + column -> residual blocks of masked dilated convolutions -> output

The decoder is stacked on the encoder: position t of the target reads column t. The encoder makes
a S + b columns of S source tokens; later target positions have no column ("dynamic unfolding",
section 3.2). The dilation doubles from block to block, and starts again in each set.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, cast, get_args

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention.cache import SourceMemory
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.layers.convolution import Buffers, Convolution
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.softmax import Softmax
from regard.models.config import (
    CONVOLUTIONAL,
    MOST_LAYERS,
    Count,
    Dilations,
    Probability,
    Size,
    TokenId,
)
from regard.models.protocols import EncoderDecoder, Output
from regard.state import State, TokensRead

Unit = Literal["relu", "multiplicative"]
Ratio = Annotated[float, Field(gt=0, le=100)]


@dataclass(frozen=True)
class ByteNetConfig:
    """The defaults are the translator of section 5.2, of 30 blocks each in encoder and decoder.

    d_model: 2d of the paper, of embeddings, columns and what passes from block to block; the
        convolutions inside a block are half as wide.
    sets: how often the dilations are passed through, by encoder and decoder each.
    kernel: positions of a dilated convolution; odd.
    unit: around the dilated convolution, "relu" (section 3.6) or "multiplicative".
    length_ratio, extra_columns: a and b; of S tokens the encoder makes ceil(a S + b) columns.
    max_length: None: a text of any length.
    bos: the token with which the decoder starts.
    """

    vocab_size: Size  # of both languages together
    d_model: Size = 1600
    dilations: Dilations = (1, 2, 4, 8, 16)
    sets: Size = 6
    kernel: Size = 3
    unit: Unit = "relu"
    length_ratio: Ratio = 1.2
    extra_columns: Count = 0
    dropout: Probability = 0.0
    max_length: Size | None = None
    pad: TokenId = 0
    bos: TokenId = 1
    eos: TokenId = 2


SIZES = {
    "tiny": dict(d_model=256, dilations=(1, 2, 4, 8), sets=1, dropout=0.1),
    "wmt14-en-de": dict(d_model=1600, sets=6),
}


class MultiplicativeUnit(nn.Module):
    """g1 tanh(g2 h + g3 u), with gates g = sigmoid(norm(W h)) and the update u = tanh(norm(W h)),
    each W a convolution (Kalchbrenner et al. 2016, "Video Pixel Networks", equation 3).
    """

    def __init__(self, width: int, kernel: int, dilation: int):
        super().__init__()
        self.convolution = Convolution(width, 4 * width, kernel, dilation)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))

    def forward(self, hidden: Tensor, convolved: Tensor) -> Tensor:
        """(B, T, D) and its convolution (B, T, 4D) -> (B, T, D)"""
        parts = zip(self.norms, convolved.chunk(4, -1), strict=True)
        *gates, update = (norm(part) for norm, part in parts)
        g1, g2, g3 = (torch.sigmoid(gate) for gate in gates)
        return g1 * torch.tanh(g2 * hidden + g3 * torch.tanh(update))


class RectifiedUnit(nn.Module):
    """relu(norm(W h)), W a convolution."""

    def __init__(self, width: int, kernel: int, dilation: int):
        super().__init__()
        self.convolution = Convolution(width, width, kernel, dilation)
        self.norm = nn.LayerNorm(width)

    def forward(self, hidden: Tensor, convolved: Tensor) -> Tensor:
        """(B, T, D) and its convolution (B, T, D) -> (B, T, D)"""
        return torch.relu(self.norm(convolved))


UNITS: dict[str, type[RectifiedUnit] | type[MultiplicativeUnit]] = {
    "relu": RectifiedUnit,
    "multiplicative": MultiplicativeUnit,
}


class ResidualBlock(nn.Module):
    """x + W_out unit(relu(norm(W_in relu(norm(x))))), figure 3; the norm is that of layers."""

    def __init__(self, config: ByteNetConfig, dilation: int):
        super().__init__()
        width, inner = config.d_model, config.d_model // 2
        self.norm, self.reduce = nn.LayerNorm(width), Linear(width, inner)
        self.inner_norm = nn.LayerNorm(inner)
        self.unit = UNITS[config.unit](inner, config.kernel, dilation)
        self.dropout, self.expand = Dropout(config.dropout), Linear(inner, width)

    def inner(self, x: Tensor) -> Tensor:
        """The input of the dilated convolution: (B, T, 2d) -> (B, T, d)."""
        return torch.relu(self.inner_norm(self.reduce(torch.relu(self.norm(x)))))

    def outer(self, x: Tensor, hidden: Tensor, convolved: Tensor) -> Tensor:
        """The output of the block, (B, T, 2d).

        Args:
            x: the input of the block, (B, T, 2d).
            hidden, convolved: `inner` of it, (B, T, d), and its dilated convolution.
        """
        return x + self.dropout(self.expand(self.unit(hidden, convolved)))


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
    """The `EncoderDecoder` without attention whose time is linear in the lengths.

    Raises:
        ConfigError: the width or the kernel cannot be halved as they must, there is no dilation, or
            there are too many blocks.
    """

    Config = ByteNetConfig
    family = CONVOLUTIONAL
    SIZES = SIZES

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
        return [block.unit.convolution for block in self.decoder]

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
            hidden = block.inner(x)
            x = block.outer(x, hidden, block.unit.convolution.centered(hidden, keep))
        return self.column(x).masked_fill(~keep[..., None], 0.0)

    def _decode(self, ids: Tensor, state: ByteNetState) -> tuple[Tensor, ByteNetState]:
        """Hidden states (B, T, 2d), and the state after these tokens (B, T)."""
        buffers, read = Buffers(self._masked, state.inputs), state.read
        x = self.dropout(self.embedding(ids)) + columns_of(state.columns, read, ids.size(1))
        for block in self.decoder:
            hidden = block.inner(x)
            x = block.outer(x, hidden, block.unit.convolution(buffers.extend(hidden)))
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
        ConfigError: an odd width, an even kernel, no dilations, too many blocks or no such unit.
    """
    if config.d_model % 2:
        raise ConfigError(f"`d_model` must be even, but is {config.d_model}: blocks halve it.")
    if config.kernel % 2 == 0:
        raise ConfigError(
            f"`kernel` must be odd, so that it has a middle in the encoder, but is {config.kernel}."
        )
    if not config.dilations:
        raise ConfigError("`dilations` must name at least one: of the blocks of a set.")
    if (count := config.sets * len(config.dilations)) > MOST_LAYERS:
        raise ConfigError(
            f"`sets` of `dilations` must make at most {MOST_LAYERS:,} blocks, but make {count:,}."
        )
    if config.unit not in get_args(Unit):
        raise ConfigError(
            f"`unit` must be one of {', '.join(get_args(Unit))}, but is {config.unit!r}."
        )
