"""How good the scores are at which a speed was reached: perplexity, and the most probable token."""

from __future__ import annotations

from typing import Any


def told(logits: Any, ids: list[int]) -> tuple[float, list[int]]:
    """Of one text: the sum of its tokens' negative log-probabilities, and the tokens guessed.

    logits: (T, V), a tensor or an array, of the tokens that follow ids[0] ... ids[T - 1].
    """
    import torch

    scores = torch.as_tensor(logits)[: len(ids) - 1].double()
    targets = torch.tensor(ids[1:])
    lost = torch.nn.functional.cross_entropy(scores, targets, reduction="sum")
    return float(lost), scores.argmax(-1).tolist()
