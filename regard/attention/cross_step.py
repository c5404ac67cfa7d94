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
    """With one head, and without projections: the memory's first layer is what is read."""

    def forward(
        self, source: SourceMemory, score: Score, capture: CapturePoint
    ) -> Callable[[Tensor], Tensor]:
        """What hidden states (B, D) find in the source, (B, D): for the steps of one loop."""
        keys, values = source.layer(0)  # (N, H=1, S, K)
        count, mask = keys.size(0), source.mask

        def look(hidden: Tensor) -> Tensor:
            rows = hidden.size(0)
            query = share(hidden[:, None, None], count)  # (B, D) -> (N, H=1, B/N, D)
            reshaped = ReshapedCapture(capture, partial(unshare, rows=rows))
            context = attend(query, keys, values, score=score, mask=mask, capture=reshaped)
            return unshare(context, rows)[:, 0, 0].to(hidden.dtype)  # -> (B, D)

        return look
