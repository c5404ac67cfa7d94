"""Recurrent layers of torch with the weights of ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def copy_layer(layer: Any, other: nn.Module, suffix: str) -> None:
    """Give torch's layer our weights; it has a second bias everywhere, which stays zero."""
    ours = {
        "weight_ih": layer.input.weight,
        "weight_hh": layer.recurrent.weight,
        "bias_ih": layer.input.bias,
        "bias_hh": layer.recurrent.bias,
    }
    with torch.no_grad():
        for name, value in ours.items():
            theirs = getattr(other, f"{name}_{suffix}")
            theirs.zero_() if value is None else theirs.copy_(value)


def torch_lstm(stack: Any) -> nn.LSTM:
    """Torch's bidirectional LSTM with the weights of a `BidirectionalStack`."""
    first, levels = stack.ahead[0], len(stack.ahead)
    lstm = nn.LSTM(
        first.input.in_features, first.d_model, levels, batch_first=True, bidirectional=True
    ).to(first.input.weight.dtype)
    for n, (ahead, back) in enumerate(zip(stack.ahead, stack.back, strict=True)):
        copy_layer(ahead, lstm, f"l{n}")
        copy_layer(back, lstm, f"l{n}_reverse")
    return lstm
