"""Which keys a query reads: windows around a position (Luong et al. 2015), one sampled key;
and steps of decoders that attend to a source, with any form of attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.attend import Score, SourceScore, attend
from regard.attention.block_sparse import by_blocks
from regard.attention.cache import SourceMemory
from regard.attention.capture import CapturePoint, ReshapedCapture
from regard.attention.masks import causal
from regard.attention.masks import window as windowed
from regard.attention.multihead import share, unshare
from regard.data.batches import Sequences
from regard.layers.linear import Linear
from regard.ops import KeyMask, UnpaddedMask, at_least_float32, hashed, uniform, weighted_index
from regard.state import State

# Sequences of at least `LONG` windows are computed by blocks, of which `BLOCKS` are one window.
# On one thread, 12 heads of 64, a window of 256, forward and backward: at 2,048 tokens blocks take
# 0.20 s, the dense grid 0.65 s; at 1,024 tokens 0.14 s and 0.16 s, and at 512 the grid is faster.
LONG, BLOCKS = 4, 4
SMALLEST_BLOCK = 16


def local_mask(batch: Sequences, window: int | None) -> KeyMask:
    """The causal mask of a batch in which a token sees the last `window` tokens; None: all."""
    if window is None or batch.width <= window:
        return batch.causal_mask()
    if batch.layout is not None:
        offsets = batch.layout.offsets
        return KeyMask(unpadded=UnpaddedMask(offsets, offsets, causal=True, window=window))
    length, device = batch.width, batch.ids.device
    if length < LONG * window or device.type == "cuda":
        return KeyMask.causal(length, device, window)
    size = max(SMALLEST_BLOCK, window // BLOCKS)
    return by_blocks(causal() & windowed(window - 1, 0), length, size, device=device)


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


# Names in `Output.extras`, (B, T): of each draw its log-probability, 0 where nothing was drawn,
# and the entropy in nats of the distribution from which it was drawn.
CHOICE_LOG_PROBS, CHOICE_ENTROPY = "choice_log_probs", "choice_entropy"


@dataclass(frozen=True)
class Selected:
    """The weights after the selection, (..., S), and (...,) each:

    index: the selected position, where every sequence selects one.
    log_probs, entropy: of a draw in training, in nats.
    """

    weights: Tensor
    index: Tensor | None = None
    log_probs: Tensor | None = None
    entropy: Tensor | None = None


class WeightSelection(Protocol):
    """From attention weights to those of which the context is the sum."""

    training: bool
    extras: tuple[str, ...]
    """The auxiliaries of `Output` in training: both names above where REINFORCE needs them."""

    def keys(self, source: Sequences) -> Tensor:
        """The keys of the random numbers of each sequence: (B,) int64."""
        ...

    def __call__(self, weights: Tensor, keys: Tensor, steps: Tensor, /) -> Selected:
        """The selection by weights (..., S), for sequences with keys (...,) at steps (...,)."""
        ...


class Soft(nn.Module):
    """The weights as they are."""

    extras: tuple[str, ...] = ()

    def keys(self, source: Sequences) -> Tensor:
        """None are needed: zeros."""
        return torch.zeros_like(source.lengths)

    def forward(self, weights: Tensor, keys: Tensor, steps: Tensor) -> Selected:
        return Selected(weights)


class HardInEvaluation(nn.Module):
    """One value in evaluation; in training the expected one.

    Args:
        seed: of the draws in evaluation; None: the largest weight is selected.
    """

    extras: tuple[str, ...] = ()

    def __init__(self, seed: int | None = None):
        super().__init__()
        self.seed = seed

    def keys(self, source: Sequences) -> Tensor:
        """A function of the seed and of the sequence's own tokens."""
        position = torch.arange(1, source.ids.size(1) + 1, device=source.ids.device)
        words = hashed(source.ids * (1 << 32) + position).masked_fill(~source.keep, 0)
        return hashed(words.sum(1) + (self.seed or 0))

    def forward(self, weights: Tensor, keys: Tensor, steps: Tensor) -> Selected:
        if not self.training:
            return self.choose(weights, keys, steps)
        return Selected(normalized(weights).to(weights.dtype))

    def choose(self, weights: Tensor, keys: Tensor, steps: Tensor) -> Selected:
        """One value, as in evaluation."""
        if self.seed is None:
            index = weights.argmax(-1)
        else:
            index = weighted_index(weights, uniform(keys, steps + 1))
        return Selected(_one_hot(index, weights), index)

    def extra_repr(self) -> str:
        return "" if self.seed is None else f"seed={self.seed}"


class Hard(HardInEvaluation):
    """One value in training, too.

    Args:
        seed: as of `HardInEvaluation`.
        expected_share: the fraction of sequences in training that take the expected value at all
            steps, which reduces the variance of the gradient (Xu et al. 2015, section 4.1: 0.5).
    """

    extras: tuple[str, ...] = (CHOICE_LOG_PROBS, CHOICE_ENTROPY)

    def __init__(self, seed: int | None = None, expected_share: float = 0.5):
        super().__init__(seed)
        self.expected_share = expected_share

    def keys(self, source: Sequences) -> Tensor:
        """In training drawn from torch's default generator."""
        if not self.training:
            return super().keys(source)
        return torch.empty(len(source), dtype=torch.int64).random_().to(source.ids.device)

    def forward(self, weights: Tensor, keys: Tensor, steps: Tensor) -> Selected:
        if not self.training:
            return self.choose(weights, keys, steps)
        probs = normalized(weights)
        index = weighted_index(probs.detach(), uniform(keys, steps + 1))
        drawn = uniform(keys, torch.zeros_like(steps)) >= self.expected_share
        drawn = drawn & (probs > 0).any(-1)
        least = torch.finfo(probs.dtype).tiny  # of a weight of 0 the gradient would be NaN
        log_probs = probs.clamp_min(least).log()
        log_prob = log_probs.gather(-1, index[..., None])[..., 0].masked_fill(~drawn, 0.0)
        entropy = -(probs * log_probs).sum(-1)
        chosen = torch.where(drawn[..., None], _one_hot(index, probs), probs)
        return Selected(chosen.to(weights.dtype), log_probs=log_prob, entropy=entropy)

    def extra_repr(self) -> str:
        share = f"expected_share={self.expected_share}"
        return share if self.seed is None else f"{super().extra_repr()}, {share}"


def normalized(weights: Tensor) -> Tensor:
    """Weights (..., S) divided by their sum, at least float32; zeros where all are 0."""
    wide = weights.to(at_least_float32(weights.dtype))
    total = wide.sum(-1, keepdim=True)
    return wide / (total + (total == 0))


def _one_hot(index: Tensor, weights: Tensor) -> Tensor:
    """1 at the index (...,), 0 elsewhere: (..., S); only zeros where all weights are 0."""
    chosen = torch.zeros_like(weights).scatter_(-1, index[..., None], 1.0)
    return chosen * (weights > 0).any(-1, keepdim=True)


class CrossAttentionStep(nn.Module):
    """One head without projections; its keys and values are layer 0 of the `SourceMemory`."""

    def forward(
        self, source: SourceMemory, score: Score, capture: CapturePoint
    ) -> Callable[[Tensor], Tensor]:
        """The attention of the steps of one loop: a function from hidden states (B, D) to contexts
        (B, D).
        """
        keys, values = source.layer(0)  # (N, H=1, S, K)
        count, mask = keys.size(0), source.mask

        def attend_step(hidden: Tensor) -> Tensor:
            rows = hidden.size(0)
            query = share(hidden[:, None, None], count)  # (B, D) -> (N, H=1, B/N, D)
            reshaped = ReshapedCapture(capture, partial(unshare, rows=rows))
            context = attend(query, keys, values, score=score, mask=mask, capture=reshaped)
            return unshare(context, rows)[:, 0, 0].to(hidden.dtype)  # -> (B, D)

        return attend_step


@dataclass
class FormProgress(State):
    """The state of windows and of hard attention.

    steps: (B,), the steps that each sequence has made.
    keys: (B,) int64, which determine its random numbers.
    """

    steps: Tensor
    keys: Tensor

    @classmethod
    def start(cls, keys: Tensor) -> FormProgress:
        """Before the first step."""
        return cls(torch.zeros_like(keys), keys)


class AttentionFormStep(nn.Module):
    """One query per sequence and step, one head, no projections.

    Args:
        window: the positions that may be attended to.
        selection: soft or hard attention.
    """

    def __init__(self, window: SourceWindow, selection: WeightSelection):
        super().__init__()
        self.window, self.selection = window, selection

    def forward(
        self,
        source: SourceMemory,
        progress: FormProgress,
        score: SourceScore,
        capture: CapturePoint,
    ) -> AttentionFormLoop:
        """The attention of the steps of one loop."""
        return AttentionFormLoop(self, source, progress, score, capture)


class AttentionFormLoop:
    """The steps of one loop; see `AttentionFormStep`.

    progress: after the steps so far.
    views, weights, selected: of each step the window, the weights (N, H=1, B/N, S) before the
        selection, and the selection.
    """

    def __init__(
        self,
        form: AttentionFormStep,
        source: SourceMemory,
        progress: FormProgress,
        score: SourceScore,
        capture: CapturePoint,
    ):
        self.form, self.score, self.capture, self.progress = form, score, capture, progress
        # All sources may be empty: then there is a position of padding, to choose from.
        padding = 0, 0, 0, int(not source.keys.size(3))
        self.keys, self.values = (
            F.pad(tensor, padding) for tensor in source.layer(0)
        )  # (N, H=1, S, K)
        self.lengths = source.lengths[:, None, None]  # (N, H=1, T=1)
        self.views: list[WindowView] = []
        self.weights: list[Tensor] = []
        self.selected: list[Selected] = []

    def __call__(self, hidden: Tensor) -> Tensor:
        """Contexts (B, D) of hidden states (B, D); B / N of them read each of the N sources."""
        rows, (count, _, width, _) = hidden.size(0), self.keys.shape
        query = share(hidden[:, None, None], count)  # (B, D) -> (N, H=1, B/N, D)
        shape = count, 1, query.size(2)
        # (B,) -> (N, H=1, B/N)
        steps, keys = self.progress.steps.view(shape), self.progress.keys.view(shape)
        view = self.form.window(query, steps, self.lengths, width)
        self.views.append(view)

        def reweight(weights: Tensor) -> Tensor:
            """(N, H=1, B/N, S) -> the same shape"""
            if view.factor is not None:
                weights = weights * view.factor.to(weights.dtype)
            self.weights.append(weights)
            self.selected.append(self.form.selection(weights, keys, steps))
            return self.selected[-1].weights

        context = attend(
            query,
            self.keys,
            self.values,
            score=self.score,
            mask=KeyMask(view.allowed),
            reweight=reweight,
            capture=ReshapedCapture(self.capture, partial(unshare, rows=rows)),
        )
        self.progress = replace(self.progress, steps=self.progress.steps + 1)
        return unshare(context, rows)[:, 0, 0].to(hidden.dtype)  # -> (B, D)

    def extras(self) -> dict[str, Tensor]:
        """For `Output.extras`: the log-probability and the entropy of each draw, (B, T)."""
        log_probs = [
            selected.log_probs.flatten()
            for selected in self.selected
            if selected.log_probs is not None
        ]
        entropy = [
            selected.entropy.flatten() for selected in self.selected if selected.entropy is not None
        ]
        if not log_probs:
            return {}
        return {
            CHOICE_LOG_PROBS: torch.stack(log_probs, 1),
            CHOICE_ENTROPY: torch.stack(entropy, 1),
        }
