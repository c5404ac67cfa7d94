"""Absolute position embeddings: sinusoidal, learned, or none, as with relative positions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.data.dependency_trees import ancestors, depths, trees_of
from regard.errors import RegardError
from regard.layers.linear import Linear


def sinusoid(positions: Tensor, d_model: int) -> Tensor:
    """Sinusoidal position vectors, (...,) -> (..., D), float32.

    PE(pos, 2i) = sin(pos / 10000^(2i/D)),  PE(pos, 2i+1) = cos(pos / 10000^(2i/D))
                                                     (Vaswani et al. 2017, section 3.5)

    The angles are computed in float64: in float32 position 10,000 is already off by 1e-3.
    """
    if d_model % 2:
        raise ValueError(f"`d_model` must be even for pairs of sine and cosine, but is {d_model}.")
    pairs = torch.arange(0, d_model, 2, dtype=torch.float64, device=positions.device)
    angles = positions.double().unsqueeze(-1) * torch.exp(pairs * (-math.log(10000.0) / d_model))
    # (..., D/2, 2) -> (..., D): the sine and the cosine of a frequency are neighbours
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2).float()


def sinusoid_in_halves(positions: Tensor, d_model: int) -> Tensor:
    """Sinusoidal position vectors of fairseq and tensor2tensor, (...,) -> (..., D), float32.

    All sines are before all cosines, and the last frequency is 1/10000:
    PE(pos, i) = sin(pos / 10000^(i/(D/2-1))),  PE(pos, D/2+i) = cos(pos / 10000^(i/(D/2-1)))
    """
    half = d_model // 2
    if d_model % 2 or half < 2:
        raise ValueError(f"`d_model` must be even and at least 4, but is {d_model}.")
    rates = torch.arange(half, dtype=torch.float64, device=positions.device) / (half - 1)
    angles = positions.double().unsqueeze(-1) * torch.exp(rates * -math.log(10000.0))
    return torch.cat([angles.sin(), angles.cos()], -1).float()


class SequenceLengths(Protocol):
    """The lengths of the sequences of a decoder's state.

    longest: the largest length.
    equal_lengths: whether all lengths are `longest`.
    """

    longest: int
    equal_lengths: bool

    def positions(self, count: int) -> Tensor:
        """The positions of the next `count` tokens of each sequence: (B, T)."""
        ...


class PositionTable(nn.Module, ABC):
    """A vector for each position.

    max_length: the positions that have one; None: there is no limit.
    """

    max_length: int | None = None

    @abstractmethod
    def forward(self, count: int, start: int = 0) -> Tensor:
        """Vectors of `count` positions from `start`: (T, D).

        Raises:
            ValueError: the table has no such positions.
        """

    @abstractmethod
    def at(self, positions: Tensor, end: int) -> Tensor:
        """Vectors of positions that differ between sequences: (B, T) -> (B, T, D).

        Args:
            end: an upper bound of the positions (exclusive) that is known without the device.

        Raises:
            ValueError: the table has no such positions.
        """

    def of(self, batch: Sequences) -> Tensor:
        """Vectors of the tokens of a batch, (T, D), or without padding (1, N, D)."""
        if batch.layout is None:
            return self(batch.ids.size(1))
        return self.at(batch.positions, batch.width)

    def after(self, cache: SequenceLengths, count: int) -> Tensor:
        """Vectors of the next `count` tokens: (T, D), or (B, T, D) where lengths differ."""
        if cache.equal_lengths:
            return self(count, cache.longest)
        return self.at(cache.positions(count), cache.longest + count)


class SinusoidalPositions(PositionTable):
    """A table without parameters, which is enlarged when a position exceeds it.

    vectors: the function from positions (N,) and a width D to vectors (N, D).
    """

    table: Tensor

    def __init__(self, d_model: int, vectors: Callable[[Tensor, int], Tensor] = sinusoid):
        super().__init__()
        self.d_model, self.vectors_of = d_model, vectors
        self.register_buffer("table", vectors(torch.arange(256), d_model), persistent=False)

    def reserve(self, count: int) -> None:
        """Enlarge the table to contain the positions 0 ... count - 1."""
        if count > self.table.size(0):
            longer = torch.arange(2 * count, device=self.table.device)
            self.table = self.vectors_of(longer, self.d_model).to(self.table.dtype)

    def forward(self, count: int, start: int = 0) -> Tensor:
        """Vectors of `count` positions from `start`: (T, D)."""
        self.reserve(start + count)
        return self.table[start : start + count]

    def at(self, positions: Tensor, end: int) -> Tensor:
        """Vectors of positions that differ between sequences: (B, T) -> (B, T, D)."""
        self.reserve(end)
        return self.table[positions]


class LearnedPositions(PositionTable):
    """A learned vector for each of the first `max_length` positions (GPT, BERT).

    offset: the row of the table for position 0.
    """

    max_length: int

    def __init__(self, max_length: int, d_model: int, offset: int = 0):
        super().__init__()
        self.max_length, self.offset = max_length, offset
        self.vectors = nn.Embedding(offset + max_length, d_model)

    def forward(self, count: int, start: int = 0) -> Tensor:
        """Vectors of `count` positions from `start`: (T, D).

        Raises:
            ValueError: a position lies beyond the table.
        """
        self._check(start + count)
        first = self.offset + start
        return self.vectors.weight[first : first + count]

    def at(self, positions: Tensor, end: int) -> Tensor:
        """Vectors of positions that differ between sequences: (B, T) -> (B, T, D).

        Raises:
            ValueError: a position lies beyond the table.
        """
        if end > self.max_length:
            self._check(int(positions.max()) + 1 if positions.numel() else 0)
        return self.vectors(positions + self.offset if self.offset else positions)

    def _check(self, end: int) -> None:
        if end > self.max_length:
            raise ValueError(
                f"The input reaches position {end}, but this model has learned only "
                f"{self.max_length} positions. Shorten the input."
            )


class NoPositions(PositionTable):
    """Zeros, where positions are relative or there are none."""

    zero: Tensor

    def __init__(self, d_model: int):
        super().__init__()
        self.register_buffer("zero", torch.zeros(d_model), persistent=False)

    def forward(self, count: int, start: int = 0) -> Tensor:
        """Zeros (T, D)."""
        return self.zero.expand(count, -1)

    def at(self, positions: Tensor, end: int) -> Tensor:
        """Zeros: (B, T) -> (B, T, D)."""
        return self.zero.expand(*positions.shape, -1)


class DependencyPositions(PositionTable):
    """The position of a token and the depth of its word in the dependency tree: "Self-Attention
    with Structural Position Representations" (Wang et al. 2019, section 3).

    p = tanh(W [sinusoid(position); sinusoid(depth)] + b), the depth of the root being 0

    The paper combines them by "a non-linear function"; here it is tanh of a linear layer.
    """

    def __init__(self, d_model: int):
        super().__init__()
        self.sinusoids = SinusoidalPositions(d_model)
        self.combined = Linear(2 * d_model, d_model)

    def of(self, batch: Sequences) -> Tensor:
        """Vectors of the tokens of a batch, (B, T, D), or without padding (1, N, D).

        Raises:
            RegardError: the batch has no dependency trees.
        """
        depth = depths(ancestors(*trees_of(batch)))
        if batch.layout is not None:
            depth = batch.layout.unpad(depth)
        sequential = self.sinusoids.of(batch).expand(*depth.shape, -1)
        structural = self.sinusoids.at(depth, batch.width)
        return torch.tanh(self.combined(torch.cat([sequential, structural], -1)))

    def forward(self, count: int, start: int = 0) -> Tensor:
        """Raise an error: positions alone have no tree."""
        raise RegardError("Positions in a dependency tree need the tree of the whole text.")

    def at(self, positions: Tensor, end: int) -> Tensor:
        """Raise an error: positions alone have no tree."""
        return self(0)


class RobertaPositions(LearnedPositions):
    """RoBERTa's learned positions: the first token has row `pad + 1` of the table; padding ids,
    also between tokens, have row `pad` and are not counted.

    `of` finds padding ids in the batch; `forward`, `at` and `after` are for inputs without them.
    """

    def __init__(self, max_length: int, d_model: int, pad: int):
        super().__init__(max_length, d_model, offset=pad + 1)
        self.pad = pad

    def of(self, batch: Sequences) -> Tensor:
        """Vectors of the tokens of a batch, (B, T, D), or without padding (1, N, D).

        Raises:
            ValueError: a sequence is longer than the model has positions for.
        """
        self._check(batch.width)
        ids = batch.pad(batch.ids)
        if batch.layout is not None:  # `pad` fills up with zeros, which may be an id
            ids = ids.masked_fill(~batch.keep, self.pad)
        tokens = ids.ne(self.pad)
        positions = tokens.cumsum(1) * tokens + self.pad
        if batch.layout is not None:
            positions = batch.layout.unpad(positions)
        return nn.functional.embedding(positions, self.vectors.weight, padding_idx=self.pad)


RotaryScaling = Literal["none", "linear", "llama3"]


@dataclass(frozen=True)
class RotaryAngles:
    """The frequencies of the K/2 pairs: frequency i is theta^(-2i/K).

    scaling: for texts longer than those of pre-training. "linear" divides all frequencies by
        `factor` (Chen et al. 2023, "Extending Context Window of Large Language Models via Position
        Interpolation", eq. 3). "llama3" divides those whose wavelength is above
        `original_length` / `low_factor`, leaves those below `original_length` / `high_factor` as
        they are, and interpolates between them (Llama 3.1's published program).
    """

    theta: float = 10_000.0
    scaling: RotaryScaling = "none"
    factor: float = 1.0
    low_factor: float = 1.0
    high_factor: float = 4.0
    original_length: int = 8192

    def frequencies(self, head_dim: int) -> Tensor:
        """The frequency of each pair, in radians per position: (K/2,) float64.

        Raises:
            ValueError: K is odd.
        """
        if head_dim % 2:
            raise ValueError(f"Rotary positions need heads of an even width, not {head_dim}.")
        pairs = torch.arange(0, head_dim, 2, dtype=torch.float64)
        plain = torch.exp(pairs * (-math.log(self.theta) / head_dim))
        match self.scaling:
            case "linear":
                return plain / self.factor
            case "llama3":
                # 0 where a wavelength is long, 1 where it is short
                turns = self.original_length * plain / (2 * math.pi)
                share = (turns - self.low_factor) / (self.high_factor - self.low_factor)
                share = share.clamp(0, 1)
                return (1 - share) * plain / self.factor + share * plain
            case _:
                return plain

    def __call__(self, positions: Tensor, head_dim: int) -> Tensor:
        """The cosines, then the sines of positions: (...,) -> (..., K), float32.

        The angles are computed in float64, as those of `sinusoid`.
        """
        frequencies = self.frequencies(head_dim).to(positions.device)
        angles = positions.double().unsqueeze(-1) * frequencies
        return torch.cat([angles.cos(), angles.sin()], -1).float()


class RotaryPositions(SinusoidalPositions):
    """The cosines and sines of each position, (T, K): what `rotate` takes."""

    def __init__(self, head_dim: int, angles: RotaryAngles):
        super().__init__(head_dim, angles)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate queries or keys, (B, H, T, K), same, by `RotaryPositions` (T, K) or (B, T, K)."""
    cos, sin = angles.unsqueeze(-3).to(x).chunk(2, -1)  # (T, K) -> 2 times (1, T, K/2)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
