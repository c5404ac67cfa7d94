"""Operations over numbered registers, in the order in which the kernels run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.relative_protocol import RelativeBias
from regard.kernels.tracer import CannotCompile
from regard.layers.positions import RobertaPositions, SinusoidalPositions
from regard.layers.quantized import QuantizedMatrix

MAX_DISTANCES = 2**14  # of which a table has the biases, for each head


def table_of(positions: Any) -> Tensor:
    """The vectors of positions, (N, D), from the first; of RoBERTa's, those of padding, too."""
    if isinstance(positions, SinusoidalPositions):
        return positions.table
    weight: Tensor = positions.vectors.weight
    counted = isinstance(positions, RobertaPositions)
    return weight if counted else weight[positions.offset :]


def readable_table(table: Tensor) -> Tensor:
    """The same, where kernels can read it.

    Raises:
        CannotCompile: they cannot.
    """
    if table.dtype != torch.float32 or not table.is_contiguous():
        raise CannotCompile("a table of embeddings or positions must be contiguous, in float32")
    return table


def bias_table(bias: RelativeBias, heads: Sequence[int], scale: float) -> Tensor:
    """What is added to the scores of these heads before they are scaled, by distance: (H, 2 N - 1);
    from N - 1 positions on the biases on a side are equal. See `Op.table`.

    Raises:
        CannotCompile: too many distances have a bias of their own.
    """
    if bias.max_distance > MAX_DISTANCES:
        raise CannotCompile(f"more than {MAX_DISTANCES:,} distances with a bias of their own")
    limit = bias.max_distance
    with torch.no_grad():
        biases = bias.by_distance(torch.arange(limit, -limit - 1, -1))  # (2 N - 1, H)
    return readable_table((biases[:, list(heads)].t() / scale).contiguous())


# The numbers that programs.h gives them.
NORM, LINEAR, SELF, CROSS, ADD, EMBEDDING, TABLE, POSITIONS, SCALE = range(9)
TOKEN_POSITIONS, FIRST_TOKEN, SELF_FIRST_TOKEN = range(9, 12)
READ_STATE, WRITE_STATE, CONCAT, CELL, CACHE_ONLY = range(12, 17)
RMS_NORM, GATED, GROUPED = range(17, 20)
RNN_CELL, GRU_CELL, LSTM_CELL, LSTM_HIDDEN = range(4)  # of CELL, as cells.h has them
ABSENT = -1


@dataclass(frozen=True, eq=False)
class Op:
    """target = kind(source), and `other` is added: numbers of registers.

    matrix: of a product, with its bias, or of an embedding.  gain, bias: of a norm.
    table: (N, D) float32, of ids or of positions; of self-attention (H, 2 N - 1), what is added to
        the scores of keys N - 1 positions before the query, ..., at it, ..., N - 1 behind it; of
        GROUPED (N, K), the cosines and sines of positions.
    number: the scale of scores or of states, or the epsilon of a norm.
    window: of self-attention, how many positions a token sees, its own included; 0: all.
    """

    kind: int
    target: int
    source: int = ABSENT
    other: int = ABSENT
    layer: int = 0
    heads: int = 0
    head_dim: int = 0
    activation: int = 0
    number: float = 0.0
    window: int = 0
    matrix: QuantizedMatrix | None = None
    gain: Tensor | None = None
    bias: Tensor | None = None
    table: Tensor | None = None

    @property
    def reads(self) -> tuple[int, int]:
        return self.source, self.other


@dataclass(frozen=True)
class OpList:
    """Operations over registers of these widths; the first is what comes in and goes out."""

    ops: list[Op]
    widths: list[int]

    def cache_only(self) -> OpList:
        """What of it fills a cache; no hidden states come out.

        Raises:
            CannotCompile: it fills none.
        """
        at = [number for number, op in enumerate(self.ops) if op.kind in (SELF, GROUPED)]
        if not at:
            raise CannotCompile("a model without self-attention has no cache to fill")
        last = replace(self.ops[at[-1]], kind=CACHE_ONLY)
        return OpList([*self.ops[: at[-1]], last], self.widths)


def fuse_additions(ops: list[Op], last: int) -> list[Op]:
    """Additions that follow a product directly become part of it."""
    fused: list[Op] = []
    for at, op in enumerate(ops):
        before = fused[-1] if fused else None
        later = {register for other in ops[at + 1 :] for register in other.reads} | {last}
        if (
            op.kind == ADD
            and before is not None
            and (before.kind, before.other) == (LINEAR, ABSENT)
            and before.target in op.reads
            and before.target not in later
            and op.source != op.other
        ):
            added = next(register for register in op.reads if register != before.target)
            fused[-1] = replace(before, target=op.target, other=added)
        else:
            fused.append(op)
    return fused


def allocate_registers(ops: list[Op], widths: list[int], last: int) -> OpList:
    """Reuse registers that are not read any more; the result is in the first.

    Raises:
        CannotCompile: the last product still reads what came in, or there is nothing.
    """
    end = ops[-1] if ops else None
    if end is None or end.target != last or (end.kind != ADD and 0 in end.reads):
        raise CannotCompile("the result must be that of the last layer")
    final = {register: at for at, op in enumerate(ops) for register in op.reads}
    register_of, packed = {ABSENT: ABSENT, 0: 0}, [widths[last]]
    free: dict[int, list[int]] = {}  # by width
    allocated = []
    for at, op in enumerate(ops):
        width = widths[op.target]
        spare = free.setdefault(width, [])
        if op is end:
            register_of[last] = 0
        elif spare:
            register_of[op.target] = spare.pop()
        else:
            register_of[op.target] = len(packed)
            packed.append(width)
        allocated.append(
            replace(
                op,
                target=register_of[op.target],
                source=register_of[op.source],
                other=register_of[op.other],
            )
        )
        for register in {
            register for register in op.reads if register > 0 and final[register] == at
        }:
            free.setdefault(widths[register], []).append(register_of[register])
    return OpList(allocated, packed)
