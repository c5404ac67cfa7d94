"""From hidden states to words: scores to decode with, and a loss that never holds them all.

A batch of 4,096 tokens and a vocabulary of 50,000 words make 800 MB of logits and as much again of
gradients. `loss` goes through the tokens in slices and computes, while a slice's logits exist, both
its loss and its gradients; so memory is one slice, and the backward pass is a multiplication. The
slope of so few tokens that it is smaller than the gradients is kept instead of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.data.batches import IGNORE
from regard.layers.linear import compute_type, linear, narrowed, outer, product, sum_rows
from regard.native import training as native
from regard.native.words import surprise

SLICE = 2**21  # logits that exist at one moment: 8 MB in float32, which a CPU's cache holds
WORTH = 128  # rows of them that pay for reading the weight, where no gradient is asked for
SLICES = {"cuda": 2**26}  # 256 MB: products large enough to keep a GPU busy
# In training, 16 MB in bfloat16: each slice also passes over the weight's gradient, so that all of
# this takes 0.6 times as long as with slices of 2**21 (700 tokens, 10,000 words, 650 wide).
LEARNED = 2**23


class Softmax(nn.Module):
    """log p(word) = log softmax(W h + b), with W shared with an embedding where it is given."""

    def __init__(self, d_model: int, vocab_size: int, *, tied: nn.Embedding | None, bias: bool):
        super().__init__()
        if tied is not None and tied.weight.shape != (vocab_size, d_model):
            raise ValueError(
                f"A tied output needs an embedding of shape {(vocab_size, d_model)}, "
                f"but it is {tuple(tied.weight.shape)}."
            )
        weight = torch.empty(vocab_size, d_model) if tied is None else tied.weight
        self.weight = nn.Parameter(weight) if tied is None else tied.weight
        if tied is None:
            nn.init.normal_(self.weight, std=d_model**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        return linear(hidden, self.weight, self.bias)

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """Sum of the cross-entropies in nats, and how many targets counted.

        Args:
            hidden: (N, D).
            targets: (N,) word ids; -100 does not count.
            smoothing: share e of the target's probability spread evenly over all words
                (Szegedy et al. 2016, section 7): (1 - e) * -log p(target) + e * mean(-log p).
            count: how many targets count, where that is known: then nobody waits for the device.
        """
        hidden, targets = counting(hidden, targets, count)
        learning = torch.is_grad_enabled()  # inside the function it is always off
        if not learning and not smoothing:
            return surprise_of(hidden, targets, self.logits, self.weight.size(0)), targets.numel()
        total = _SlicedCrossEntropy.apply(
            hidden, self.weight, self.bias, targets, smoothing, learning
        )
        return total, targets.numel()


def counting(hidden: Tensor, targets: Tensor, count: int | None) -> tuple[Tensor, Tensor]:
    """The hidden states (N, D) and targets (N,) that count, `count` of them; None: look."""
    kept = targets != IGNORE
    count = int(kept.sum()) if count is None else count
    if count == targets.numel():
        return hidden, targets
    places = torch.nonzero_static(kept, size=count)[:, 0]
    return hidden.index_select(0, places), targets[places]


def slice_on(device: torch.device) -> int:
    """How many logits exist at one moment on a device."""
    return SLICES.get(device.type, SLICE)


def surprise_of(
    hidden: Tensor, targets: Tensor, logits: Callable[[Tensor], Tensor], vocab_size: int
) -> Tensor:
    """The sum of -log p(target), slice by slice and without a gradient: (N, D) and (N,) -> ()."""
    total = hidden.new_zeros((), dtype=torch.float64)
    rows = max(slice_on(hidden.device) // vocab_size, WORTH)
    for start in range(0, targets.numel(), rows):
        part = slice(start, start + rows)
        total += surprise(logits(hidden[part]), targets[part]).sum()
    return total.to(_widen(hidden).dtype)


class _SlicedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        learning: bool,
    ) -> Tensor:
        kind = compute_type(hidden)
        here = narrowed(weight, kind), None if bias is None else narrowed(bias, kind)
        ctx.learning = learning and any(ctx.needs_input_grad)
        ctx.kinds = hidden.dtype, weight.dtype
        # To pass over the weight's gradient pays from about D/2 tokens on.
        logits = SLICES.get(weight.device.type, LEARNED)
        rows = max(logits // weight.size(0), weight.size(1) // 2, 1)
        total = hidden.new_zeros((), dtype=torch.float64)
        # The slope of few tokens is smaller than the gradient, and scaled with less work.
        ctx.few = 0 < hidden.size(0) <= min(rows, weight.size(1))
        gradients = None
        if ctx.learning and not ctx.few:
            gradients = _Gradients(hidden, weight, bias)
        for start in range(0, hidden.size(0), rows):
            part = slice(start, start + rows)
            piece = hidden[part].to(kind)
            loss, slope = _loss(product(piece, *here), targets[part], smoothing)
            total += loss
            if gradients is not None:
                gradients.add(part, piece, here[0], slope.to(kind))
            elif ctx.learning:
                ctx.save_for_backward(piece, here[0], slope.to(kind))
        if gradients is not None:
            ctx.save_for_backward(*gradients.found())
        return total.to(_widen(hidden).dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        found = _of_few if ctx.few else _of_many
        return *found(ctx, grads[0]), None, None, None


def _of_few(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients from the slope of the only slice, of which the products are taken here."""
    piece, weight, slope = ctx.saved_tensors
    hidden_kind, kind = ctx.kinds
    needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    return (
        product(slope, weight.t()).mul_(scale).to(hidden_kind) if needs_hidden else None,
        outer(slope, piece * scale.to(piece.dtype), kind) if needs_weight else None,
        sum_rows(slope, kind) * scale if needs_bias else None,
    )


def _of_many(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
    """From the gradients that all slices have left."""
    hidden, weight, bias = ctx.saved_tensors
    # The bias's place is empty, not missing, where the head has none.
    return (
        hidden * scale.to(hidden.dtype),
        weight * scale,
        bias * scale if bias.numel() else None,
    )


class _Gradients:
    """Gradients gathered slice by slice; those of the parameters in their own precision."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None):
        self.hidden = torch.empty_like(hidden)
        self.weight = torch.empty_like(weight) if hidden.size(0) else torch.zeros_like(weight)
        self.bias = weight.new_zeros(0) if bias is None else torch.zeros_like(bias)

    def add(self, part: slice, piece: Tensor, weight: Tensor, slope: Tensor) -> None:
        """`slope` is d loss / d logits of one slice, (n, V)."""
        self.hidden[part] = product(slope, weight.t())
        if part.start:
            self.weight += product(slope.t(), piece.t())
        else:  # the first slice spares a pass over zeros
            self.weight.copy_(product(slope.t(), piece.t()))
        if self.bias.numel():
            self.bias += _widen(slope).sum(0)

    def found(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.hidden, self.weight, self.bias


def _loss(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Sum of the losses of a slice (n, V), and d loss / d logits, which may take their memory.

    d/dz of (1 - e) * (lse - z_t) + e * (lse - mean z)  is  softmax - (1 - e) * onehot - e / V.
    """
    if native.fit(logits) and logits.is_contiguous():
        return native.cross_entropy(logits, targets, smoothing).sum(), logits
    slope = logits.softmax(-1, dtype=_widen(logits[:0]).dtype)
    # log sum exp z = max z - log max p: the softmax has already done the sum.
    norm = logits.amax(-1).double() - slope.amax(-1).double().log()  # (n,)
    loss = norm - (1 - smoothing) * logits.gather(1, targets[:, None])[:, 0].double()
    rows = torch.arange(targets.numel(), device=targets.device)
    slope[rows, targets] -= 1 - smoothing
    if smoothing:
        loss -= smoothing * logits.mean(-1, dtype=slope.dtype).double()
        slope -= smoothing / logits.size(-1)
    return loss.sum(), slope


def _widen(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
