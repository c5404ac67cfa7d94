"""A model for a larger vocabulary: the same weights, and new rows for the new tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from regard.models.encoder_with_heads import EncoderWithHeads, assembled


def with_vocabulary(
    model: EncoderWithHeads, vocab_size: int, **ids: int | None
) -> EncoderWithHeads:
    """The same encoder and heads with an embedding of `vocab_size` rows, if it has fewer.

    New rows are drawn as all rows were when the model began.

    ids: the options of the configuration that name tokens (bos, pad), where they change.
    """
    size = max(vocab_size, model.config.vocab_size)
    kind: Any = type(model.encoder)
    device = next(model.parameters()).device
    # Drawn on the CPU, the same on every machine; a model on the meta device stays there.
    with torch.device(device if device.type == "meta" else "cpu"):
        grown = assembled(kind(replace(model.config, vocab_size=size, **ids)), model.outputs())
    tensors = grown.state_dict()
    for name, old in model.state_dict().items():
        rows = old.size(0) if old.dim() else 0
        tensors[name] = torch.cat([old, tensors[name][rows:].to(old)]) if rows else old
    grown.load_state_dict(tensors)
    grown.labels = model.labels
    return grown.to(device).train(model.training)
