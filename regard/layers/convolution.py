"""Convolutions over time, and what their steps remember.

y_t = b + sum over j < k of W_j x_(t - (k - 1 - j) r)     with kernel k and dilation r

A convolution is one product with windows of its input, k positions end to end, so that one step of
a decoder is the same product with one window. Its buffer is the last (k - 1) r inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.layers.linear import Linear


class Convolution(nn.Module):
    """Of positions `dilation` away from each other, without padding of its own.

    reach: how many positions before the first output the input begins.
    """

    def __init__(self, d_in: int, d_out: int, kernel: int, dilation: int = 1):
        super().__init__()
        self.d_in, self.dilation, self.reach = d_in, dilation, (kernel - 1) * dilation
        self.linear: nn.Module = Linear(kernel * d_in, d_out)

    def forward(self, x: Tensor) -> Tensor:
        """(B, reach + T, D) -> (B, T, N)"""
        count = x.size(1) - self.reach
        starts = range(0, self.reach + 1, self.dilation)
        # k times (B, T, D) -> (B, T, k * D), the earliest position first
        windows = torch.cat([x[:, start : start + count] for start in starts], -1)
        found: Tensor = self.linear(windows)
        return found

    def centered(self, x: Tensor, keep: Tensor) -> Tensor:
        """Each position with those on both sides, (B, T, D) -> (B, T, N); of an even kernel one
        more comes from the right.

        Args:
            keep: (B, T), False for padding, which is read as zeros.
        """
        left = (self.reach // self.dilation) // 2 * self.dilation
        return self(F.pad(x.masked_fill(~keep[..., None], 0.0), (0, 0, left, self.reach - left)))


class Buffers:
    """The last inputs of causal convolutions, which a step reads before it replaces them.

    All in one tensor (B, C), so that a search reorders them at once.

    convolutions: in the order in which they compute.  past: (B, C) after the last step.
    """

    def __init__(self, convolutions: Sequence[Convolution], past: Tensor):
        shapes = [(one.reach, one.d_in) for one in convolutions]
        parts = past.split([reach * width for reach, width in shapes], 1)
        # (B, reach * D) -> (B, reach, D)
        self.parts = [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]
        self.kept: list[Tensor] = []

    @staticmethod
    def empty(convolutions: Sequence[Convolution], rows: int, like: Tensor) -> Tensor:
        """Zeros (B, C), which stand before the first position."""
        return like.new_zeros(rows, sum(one.reach * one.d_in for one in convolutions))

    def extend(self, x: Tensor) -> Tensor:
        """The next convolution's input with what came before: (B, T, D) -> (B, reach + T, D)."""
        past = self.parts[len(self.kept)]
        whole = torch.cat([past.to(x), x], 1)
        self.kept.append(whole[:, whole.size(1) - past.size(1) :].flatten(1))
        return whole

    @property
    def after(self) -> Tensor:
        """(B, C), once every convolution has read its input."""
        return torch.cat(self.kept, 1)
