"""Attention of a recurrent decoder's steps in any form: a window, and soft or hard.

    looks = step(source, progress, score, capture)       for the steps of one loop
    context = looks(hidden)                              (R, D) -> (R, D)
    looks.progress, looks.extras()                       the next state, and what a loss needs

`CrossAttentionStep` is the same for a global window and soft attention, which has no state and is
compiled. The values may be words of a source or regions of an image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.attend import attend
from regard.attention.cache import SourceMemory
from regard.attention.capture import CapturePoint, ReshapedCapture
from regard.attention.multihead import share, unshare
from regard.attention.scores import SourceScore
from regard.attention.selection import CHOICE_ENTROPY, CHOICE_LOG_PROBS, Selected, WeightSelection
from regard.attention.windows import SourceWindow, WindowView
from regard.ops import KeyMask
from regard.state import State


@dataclass
class FormProgress(State):
    """Of each sequence (R,): how many steps were made, and the key of its random numbers."""

    steps: Tensor
    keys: Tensor

    @classmethod
    def start(cls, keys: Tensor) -> FormProgress:
        """Before the first step."""
        return cls(torch.zeros_like(keys), keys)


class AttentionFormStep(nn.Module):
    """One query per sequence and step, one head, no projections.

    Args:
        window: which positions may be attended to.
        selection: what becomes of the weights.
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
        """What attends, for the steps of one loop."""
        return AttentionFormLoop(self, source, progress, score, capture)


class AttentionFormLoop:
    """The steps of one loop; see `AttentionFormStep`.

    progress: after the steps so far.
    views, weights, selected: of each step what the window let through, the weights
        (N, H=1, R/N, S) before the choice, and what was chosen.
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
        self.keys, self.values = (F.pad(one, padding) for one in source.layer(0))  # (N, H=1, S, K)
        self.lengths = source.lengths[:, None, None]  # (N, H=1, T=1)
        self.views: list[WindowView] = []
        self.weights: list[Tensor] = []
        self.selected: list[Selected] = []

    def __call__(self, hidden: Tensor) -> Tensor:
        """What hidden states (R, D) find, (R, D); R / N of them read each of the N sources."""
        rows, (count, _, width, _) = hidden.size(0), self.keys.shape
        query = share(hidden[:, None, None], count)  # (R, D) -> (N, H=1, R/N, D)
        shape = count, 1, query.size(2)
        steps, keys = self.progress.steps.view(shape), self.progress.keys.view(shape)
        view = self.form.window(query, steps, self.lengths, width)
        self.views.append(view)

        def reweight(weights: Tensor) -> Tensor:
            """(N, H=1, R/N, S) -> the same shape"""
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
        return unshare(context, rows)[:, 0, 0].to(hidden.dtype)  # -> (R, D)

    def extras(self) -> dict[str, Tensor]:
        """For `Output.extras`: of each choice log-probability and entropy, (R, T)."""
        log_probs = [one.log_probs.flatten() for one in self.selected if one.log_probs is not None]
        entropy = [one.entropy.flatten() for one in self.selected if one.entropy is not None]
        if not log_probs:
            return {}
        return {
            CHOICE_LOG_PROBS: torch.stack(log_probs, 1),
            CHOICE_ENTROPY: torch.stack(entropy, 1),
        }
