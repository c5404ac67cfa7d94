"""Layer normalization of a sum: the box "Add & Norm" in figure 1 of Vaswani et al. 2017."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.layers.dropout import Decision, check_probability, decide, dropout
from regard.layers.linear import compute_type
from regard.native import training as native


class AddNorm(nn.LayerNorm):
    """norm(hidden + drop(update)), in one pass over memory where there are kernels (section 5.4).

    In training on a CPU with autocast, what comes out has autocast's type.
    """

    def __init__(self, d_model: int, *, eps: float = 1e-5, dropout: float = 0.0):
        super().__init__(d_model, eps=eps)
        check_probability(dropout)
        self.dropout = dropout

    def forward(self, hidden: Tensor, update: Tensor) -> Tensor:  # type: ignore[override]
        """(..., D) and (..., D) -> (..., D)"""
        probability = self.dropout if self.training else 0.0
        usual = update.device.type == "cpu" and self.weight.dtype == torch.float32
        if usual and torch.is_grad_enabled():
            kind = compute_type(update)
            hidden, update = hidden.to(kind).contiguous(), update.to(kind).contiguous()
            if native.fit(hidden, update):
                decision = decide(probability)
                return _AddNorm.apply(hidden, update, self.weight, self.bias, self.eps, decision)
        return super().forward(hidden + dropout(update, probability))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, dropout={self.dropout}"


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        update: Tensor,
        gain: Tensor,
        bias: Tensor,
        eps: float,
        decision: Decision,
    ) -> Tensor:
        out, stats = native.add_norm(hidden, update, gain, bias, eps, decision)
        ctx.save_for_backward(hidden, update, gain, bias, stats)
        ctx.eps, ctx.decision = eps, decision
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        found = native.add_norm_back(grads[0], ctx.saved_tensors, ctx.eps, ctx.decision)
        return *found, None, None
