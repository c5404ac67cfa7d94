"""Matrix products of the compiled kernels, and the same by torch where there are none.

Narrow matrices lie as the kernels read them, in panels of 16 lines; see products.h.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.native import build

PANEL = 16  # lines of a matrix that lie together
GROUP = 64  # numbers of an input that share a scale
WEIGHTS = {torch.uint8: 0, torch.bfloat16: 1}  # the numbers that products.h gives them
SMALLEST = 1e-30  # of what has a group that is all smaller, nothing is left
OFFSET = 128  # 8-bit weights lie without sign
A_THREADS_WORK = 100_000  # multiplications of one row that pay for a further thread
AT_ONCE = 12  # rows that are multiplied while the matrix comes from memory


def threads_for(work: int, rows: int = 1) -> int:
    """How many threads should share so many multiplications, which are those of so many rows."""
    return max(1, min(torch.get_num_threads(), work // min(rows, AT_ONCE) // A_THREADS_WORK))


def pack(weight: Tensor) -> Tensor:
    """A matrix of int8 or bfloat16 in panels: (N, K) -> (N / 16, K / side, 16, side)."""
    side = 4 if weight.dtype == torch.int8 else 2
    full = F.pad(weight, (0, -weight.size(1) % GROUP, 0, -weight.size(0) % PANEL)).contiguous()
    if full.storage_offset() % side:  # as it lies in a file
        full = full.clone()
    words = full.view(torch.int32).unflatten(0, (-1, PANEL))  # `side` numbers that stay together
    # (P, 16, K / side) -> (P, K / side, 16, side)
    packed = words.transpose(1, 2).contiguous()[..., None].view(weight.dtype)
    return packed.view(torch.uint8).bitwise_xor_(OFFSET) if side == 4 else packed


def unpack(packed: Tensor, lines: int, columns: int) -> Tensor:
    """The inverse of `pack`, as float32."""
    plain = packed.transpose(1, 2).flatten(2).flatten(0, 1)[:lines, :columns]
    return _signed(plain)


def rows_of(packed: Tensor, ids: Tensor, columns: int) -> Tensor:
    """Some lines of a packed matrix, as float32: (...,) -> (..., K)"""
    lines = packed[ids // PANEL, :, ids % PANEL]  # (..., K / side, side)
    return _signed(lines.flatten(-2)[..., :columns])


def _signed(numbers: Tensor) -> Tensor:
    return numbers.float() - OFFSET if numbers.dtype == torch.uint8 else numbers.float()


def product(
    x: Tensor, packed: Tensor, scale: Tensor | None, bias: Tensor | None, shape: tuple[int, int]
) -> Tensor:
    """x W^T + b for a packed matrix of this shape (N, K): (..., K) -> (..., N).

    x is rounded as the weights are: to bfloat16, or to 8 bits in groups of 64 numbers with a scale
    of their own, where those have a scale for each line (N,). That is so with and without compiled
    kernels; and with them a row gives the same, to the last bit, alone and among others.
    """
    library = build.kernels() if _fits(x, packed, bias, shape) else None
    if library is None:
        return _by_torch(x, packed, scale, bias, shape)
    x = x.contiguous()
    out = x.new_empty(*x.shape[:-1], shape[0])
    rows = x.numel() // shape[1]
    if out.numel():
        library.regard_linear(
            *(WEIGHTS[packed.dtype], *shape),
            *(pointer(packed), pointer(scale), pointer(bias)),
            *(pointer(x), rows, pointer(out), threads_for(rows * packed.numel(), rows)),
        )
    return out


def pointer(tensor: Tensor | None) -> Any:
    """The address of its first number."""
    return None if tensor is None else tensor.data_ptr()


def _fits(x: Tensor, packed: Tensor, bias: Tensor | None, shape: tuple[int, int]) -> bool:
    fits = x.dtype == torch.float32 and x.device.type == "cpu" == packed.device.type
    fits = fits and (bias is None or bias.dtype == torch.float32)
    return fits and not x.requires_grad and x.size(-1) == shape[1]


def _by_torch(
    x: Tensor, packed: Tensor, scale: Tensor | None, bias: Tensor | None, shape: tuple[int, int]
) -> Tensor:
    weight = unpack(packed, *shape).to(x.dtype)
    if scale is None:
        return F.linear(x.to(torch.bfloat16).to(x.dtype), weight, bias)
    near = rounded(x)
    if x.requires_grad:  # rounding has a slope of zero, but what is rounded has that of x
        near = x + (near - x).detach()
    found = F.linear(near, weight) * scale.to(x.dtype)
    return found if bias is None else found + bias


def rounded(x: Tensor) -> Tensor:
    """x with 8 bits a number, in groups of 64 that share a scale."""
    groups = F.pad(x, (0, -x.size(-1) % GROUP)).unflatten(-1, (-1, GROUP))
    most = groups.abs().amax(-1, keepdim=True)
    inverse = torch.where(most < SMALLEST, 0.0, 127.0 / most)
    numbers = (groups * inverse).round() * (most / 127.0)  # NaN and infinity give NaN
    return numbers.flatten(-2)[..., : x.size(-1)]
