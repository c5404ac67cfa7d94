"""Steps of decoders that attend to a source, with any form of attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.attend import Score, attend
from regard.attention.cache import SourceMemory
from regard.attention.capture import CapturePoint, ReshapedCapture
from regard.attention.multihead import share, unshare
from regard.attention.scores import SourceScore
from regard.attention.selection import (
    CHOICE_ENTROPY,
    CHOICE_LOG_PROBS,
    Selected,
    SourceWindow,
    WeightSelection,
    WindowView,
)
from regard.ops import KeyMask
from regard.state import State


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
