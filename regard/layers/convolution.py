"""Convolutions: over time, and over images."""

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


# -------------------------------------------------------------------------------- EfficientNet-Lite
#
# EfficientNet-Lite0, whose last feature map gives the regions of an image.
#
# Tan and Le 2019, table 1, without squeeze-and-excitation and with ReLU6 instead of swish, as in
# the released "lite" models:
#
#     image (3, H, W) -> convolution, stride 2 -> 16 inverted bottlenecks -> convolution 1 x 1
#                     -> map (1280, H/32, W/32) -> one vector of 1,280 numbers for each region
#
# Convolutions are padded as TensorFlow's "SAME": a map of n columns has ceil(n / stride)
# afterwards.


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


REGION_FEATURES = 1280
EPSILON = 1e-3  # of all batch normalizations
# blocks, kernel, stride of the first, expansion, channels: the rows 2 to 8 of table 1
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM = 32  # channels


class ConvolutionNorm(nn.Module):
    """A convolution without bias, and batch normalization.

    depthwise: whether each channel is convolved by itself.
    """

    def __init__(
        self, d_in: int, d_out: int, kernel: int, stride: int = 1, depthwise: bool = False
    ):
        super().__init__()
        groups = d_in if depthwise else 1
        self.convolution = nn.Conv2d(d_in, d_out, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(d_out, eps=EPSILON, momentum=0.01)
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', ceil(H / stride), ceil(W / stride))"""
        top, left = self._padding(x.size(2)), self._padding(x.size(3))
        x = F.pad(x, (left // 2, left - left // 2, top // 2, top - top // 2))
        return self.norm(self.convolution(x))

    def _padding(self, size: int) -> int:
        """The padding of both sides together, for "SAME"."""
        steps = -(-size // self.stride)
        return max(0, (steps - 1) * self.stride + self.kernel - size)


class InvertedBottleneck(nn.Module):
    """x + project(relu6(depthwise(relu6(expand(x))))) (Sandler et al. 2018, section 3.4); without x
    where stride or width change.
    """

    def __init__(self, d_in: int, d_out: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        inner = d_in * expansion
        self.expand = ConvolutionNorm(d_in, inner, 1) if expansion > 1 else None
        self.depthwise = ConvolutionNorm(inner, inner, kernel, stride, depthwise=True)
        self.project = ConvolutionNorm(inner, d_out, 1)
        self.residual = stride == 1 and d_in == d_out

    def forward(self, x: Tensor) -> Tensor:
        inner = x if self.expand is None else F.relu6(self.expand(x))
        projected = self.project(F.relu6(self.depthwise(inner)))
        return x + projected if self.residual else projected


class EfficientNetLite(nn.Module):
    """The network without its classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvolutionNorm(3, STEM, 3, 2)
        width, blocks = STEM, []
        for count, kernel, stride, expansion, channels in STAGES:
            for n in range(count):
                step = stride if n == 0 else 1
                blocks.append(InvertedBottleneck(width, channels, kernel, step, expansion))
                width = channels
        self.blocks = nn.Sequential(*blocks)
        self.head = ConvolutionNorm(width, REGION_FEATURES, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Features of the regions, row by row: (B, 3, H, W) -> (B, S, 1280), S = H/32 * W/32."""
        x = self.blocks(F.relu6(self.stem(images)))
        return F.relu6(self.head(x)).flatten(2).transpose(1, 2)  # (B, C, h, w) -> (B, S, C)


@torch.no_grad()
def region_features(network: EfficientNetLite, image: Tensor) -> Tensor:
    """The features of one image: (3, H, W) -> (S, 1280). It is not batched with other images, so
    that they do not change the rounding.
    """
    features: Tensor = network(image[None])[0]
    return features
