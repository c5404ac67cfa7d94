"""Cross-attention of a recurrent decoder, one query per sequence and step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from regard.attention.attend import Score, attend
from regard.attention.cache import SourceMemory
from regard.attention.capture import CapturePoint, ReshapedCapture
from regard.attention.multihead import share, unshare


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
