"""Convolutions over time, and the inner layer of ULMFiT's classifier."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.layers.dropout import Dropout
from regard.layers.linear import Linear

# ---------------------------------------------------------------------------------------- over time
#
# Convolutions over time, and the buffers of their inputs in a decoder.
#
# y_t = b + sum over j < k of W_j x_(t - (k - 1 - j) r)     with kernel k and dilation r
#
# A convolution is one matrix product with windows of its input, k positions concatenated, so that a
# step of a decoder is the same product with one window. Its buffer is the last (k - 1) r inputs.


class Convolution(nn.Module):
    """A convolution of k = `kernel` positions, `dilation` apart, without padding.

    reach: (k - 1) r, by how many positions the input is longer than the output.
    """

    def __init__(self, d_in: int, d_out: int, kernel: int, dilation: int = 1):
        super().__init__()
        self.d_in, self.dilation, self.reach = d_in, dilation, (kernel - 1) * dilation
        self.linear: nn.Module = Linear(kernel * d_in, d_out)

    def forward(self, x: Tensor) -> Tensor:
        """(B, reach + T, d_in) -> (B, T, d_out)"""
        count = x.size(1) - self.reach
        starts = range(0, self.reach + 1, self.dilation)
        # k times (B, T, d_in) -> (B, T, k * d_in), the earliest position first
        windows = torch.cat([x[:, start : start + count] for start in starts], -1)
        outputs: Tensor = self.linear(windows)
        return outputs

    def centered(self, x: Tensor, keep: Tensor) -> Tensor:
        """A centred convolution: (B, T, d_in) -> (B, T, d_out). An even kernel reads one position
        more on the right.

        Args:
            keep: (B, T), False for padding, which is set to zero.
        """
        left = (self.reach // self.dilation) // 2 * self.dilation
        return self(F.pad(x.masked_fill(~keep[..., None], 0.0), (0, 0, left, self.reach - left)))


class Buffers:
    """The last inputs of causal convolutions: a step reads them and then replaces them.

    They are one tensor (B, C), which a beam search reorders by one operation.

    convolutions: in the order in which they are computed.
    past: (B, C), the buffers after the step before.
    """

    def __init__(self, convolutions: Sequence[Convolution], past: Tensor):
        shapes = [(convolution.reach, convolution.d_in) for convolution in convolutions]
        parts = past.split([reach * width for reach, width in shapes], 1)
        # (B, reach * D) -> (B, reach, D)
        self.parts = [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]
        self.updated: list[Tensor] = []

    @staticmethod
    def empty(convolutions: Sequence[Convolution], rows: int, like: Tensor) -> Tensor:
        """Zeros (B, C), the inputs before the first position, with the dtype of `like`."""
        return like.new_zeros(rows, sum(part.reach * part.d_in for part in convolutions))

    def extend(self, x: Tensor) -> Tensor:
        """The input of the next convolution after its buffer: (B, T, D) -> (B, reach + T, D)."""
        past = self.parts[len(self.updated)]
        extended = torch.cat([past.to(x), x], 1)
        last = extended[:, extended.size(1) - past.size(1) :]
        self.updated.append(last.flatten(1))  # (B, reach, D) -> (B, reach * D)
        return extended

    @property
    def after(self) -> Tensor:
        """The buffers (B, C) after this step, when every convolution has been computed."""
        return torch.cat(self.updated, 1)


# --------------------------------------------------------------------------- norms over a batch


class BatchNorm(nn.BatchNorm1d):
    """Batch normalization (Ioffe & Szegedy 2015), in float32.

    A batch of one vector has no variance: in training it is normalized by the running statistics,
    which are not updated.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, D)"""
        y = x.to(self.weight.dtype)
        if self.training and x.size(0) > 1:
            return super().forward(y).to(x.dtype)
        return F.batch_norm(
            y, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        ).to(x.dtype)


class BatchNormDense(nn.Module):
    """norm(relu(U drop(norm(h)) + b)), the inner layer of ULMFiT's classifier (Howard & Ruder 2018,
    section 3.3); both norms are batch norms.
    """

    def __init__(self, d_in: int, d_out: int, dropout: float):
        super().__init__()
        self.norm_in, self.norm_out = BatchNorm(d_in), BatchNorm(d_out)
        self.dropout = Dropout(dropout)
        self.dense = Linear(d_in, d_out)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, d_in) -> (B, d_out)"""
        hidden = self.dense(self.dropout(self.norm_in(pooled)))
        return self.norm_out(hidden.relu())
