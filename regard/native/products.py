"""Matrix products of the compiled kernels, and the same by torch where there are none.

Narrow matrices lie as the kernels read them, in panels of 16 lines; see products.h.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import RegardError
from regard.native import build
from regard.native.arguments import address, contiguous, is_cpu_strided, optional_address

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
        check_device("x", x, packed)
        return _by_torch(x, packed, scale, bias, shape)
    x = contiguous(x)
    lines, columns = shape
    size = x.shape[:-1]
    out = x.new_empty(*size, lines)
    rows = x.numel() // columns
    matrix = (
        *packed_matrix(packed, scale, shape),
        optional_address("bias", bias, torch.float32, (lines,)),
    )
    if rows:
        library.regard_linear(
            *(*matrix, address("x", x, torch.float32, (*size, columns)), rows),
            *(address("out", out, torch.float32, (*size, lines)),),
            threads_for(rows * packed.numel(), rows),
        )
    return out


def check_device(name: str, x: Tensor, packed: Tensor) -> None:
    """Raises RegardError: x is elsewhere than a matrix, which torch does not always notice."""
    if x.device != packed.device:
        raise RegardError(f"`{name}` is on {x.device}, but the matrix is on {packed.device}.")


def packed_matrix(
    packed: Tensor, scale: Tensor | None, shape: tuple[int, int]
) -> tuple[int, int, int, int, int | None]:
    """A matrix (N, K) in panels as kernels take it: type, N, K, and where numbers and scales lie.

    Raises:
        RegardError: `packed` and `scale` are not those of a matrix of this shape.
    """
    lines, columns = shape
    if packed.dtype not in WEIGHTS:
        raise RegardError(f"`packed` must be uint8 or bfloat16, but is {packed.dtype}.")
    side = 4 if packed.dtype is torch.uint8 else 2
    panels = -(-lines // PANEL), -(-columns // GROUP) * GROUP // side, PANEL, side
    data = address("packed", packed, packed.dtype, panels)
    if side == 4:
        return 0, lines, columns, data, address("scale", scale, torch.float32, (lines,))
    if scale is not None:
        raise RegardError("`scale` must be None where the weights are bfloat16.")
    return 1, lines, columns, data, None


def _fits(x: Tensor, packed: Tensor, bias: Tensor | None, shape: tuple[int, int]) -> bool:
    fits = is_cpu_strided(x) and packed.is_cpu and not x.requires_grad
    fits = fits and (bias is None or bias.dtype == torch.float32)
    return fits and x.dim() > 0 and x.size(-1) == shape[1] and 0 not in shape


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
