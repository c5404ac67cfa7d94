"""Windows: which source positions a decoder's step attends to (Luong et al. 2015).

    global    all of the source
    local-m   within half_width D of p_t = t: source and target are assumed to be monotonic
    local-p   within D of p_t = S sigmoid(v · tanh(W h_t)), and the weights, after the softmax over
              the window, times exp(-(s - p_t)^2 / (2 (D/2)^2))

A window can be combined with any score: it is a mask, and with local-p also a factor of the
weights. Positions s and t count from 0. Positions before and after the source are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from regard.layers.linear import Linear
from regard.ops import at_least_float32


@dataclass(frozen=True)
class WindowView:
    """The window of each query.

    allowed: (..., S) bool, the positions inside it.
    factor: (..., S), what the weights are multiplied by after the softmax; None: 1.
    centre: (...,), the position p_t; None where the window has none.
    deviation: the standard deviation of the factor's Gaussian, in positions.
    """

    allowed: Tensor
    factor: Tensor | None = None
    centre: Tensor | None = None
    deviation: float | None = None


class SourceWindow(Protocol):
    """Which positions of a source each query may attend to."""

    def __call__(self, query: Tensor, steps: Tensor, lengths: Tensor, width: int, /) -> WindowView:
        """The windows of queries (..., D).

        Args:
            steps: (...,), t of each query.
            lengths: S of each query's source, without padding; broadcast to (...,).
            width: source positions, padding included.
        """
        ...


@dataclass(frozen=True)
class GlobalWindow:
    """All of the source."""

    def __call__(self, query: Tensor, steps: Tensor, lengths: Tensor, width: int) -> WindowView:
        positions = torch.arange(width, device=query.device)
        return WindowView((positions < lengths[..., None]).expand(*query.shape[:-1], width))


@dataclass(frozen=True)
class MonotonicWindow:
    """Local-m: p_t = t, or the last position of a source that is shorter than t.

    half_width: D, in positions.
    """

    half_width: int

    def __call__(self, query: Tensor, steps: Tensor, lengths: Tensor, width: int) -> WindowView:
        positions = torch.arange(width, device=query.device)
        centre = torch.minimum(steps, lengths - 1).expand(query.shape[:-1])
        near = (positions - centre[..., None]).abs() <= self.half_width
        return WindowView(near & (positions < lengths[..., None]), centre=centre)


class PredictiveWindow(nn.Module):
    """Local-p: p_t is predicted, with a Gaussian around it (Luong et al. 2015, eq. 9 and 10).

    Its standard deviation is D / 2. As in the paper, the weights are not normalized again.
    """

    def __init__(self, d_query: int, half_width: int):
        super().__init__()
        self.half_width = half_width
        self.inner = Linear(d_query, d_query, bias=False)
        self.outer = nn.Linear(d_query, 1, bias=False)

    def forward(self, query: Tensor, steps: Tensor, lengths: Tensor, width: int) -> WindowView:
        share = torch.sigmoid(self.outer(torch.tanh(self.inner(query))))[..., 0]  # (...,)
        dtype = at_least_float32(share.dtype)  # 16 bits do not distinguish positions beyond 256
        centre = share.to(dtype) * lengths
        positions = torch.arange(width, device=query.device)
        distance = positions - centre[..., None]  # (..., S)
        near = (distance.abs() <= self.half_width) & (positions < lengths[..., None])
        deviation = self.half_width / 2
        factor = torch.exp(-(distance**2) / (2 * deviation**2))
        return WindowView(near, factor, centre, deviation)

    def extra_repr(self) -> str:
        return f"half_width={self.half_width}"
