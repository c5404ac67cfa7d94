"""Operations that the kernels run one after the other, on numbered registers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from regard.kernels.tracer import CannotCompile
from regard.layers.quantized import QuantizedMatrix

# The numbers that programs.h gives them.
NORM, LINEAR, SELF, CROSS, ADD, LINES, TABLE, PLACES, SCALED = range(9)
COUNTED, FIRST, SELF_FIRST, BEFORE, AFTER, JOINED, STATE, KEEP = range(9, 17)
RNN_CELL, GRU_CELL, LSTM_CELL, LSTM_HIDDEN = range(4)  # of STATE, as cells.h has them
ABSENT = -1


@dataclass(frozen=True, eq=False)
class Op:
    """target = kind(source), and `other` is added: numbers of registers.

    matrix: of a product, with its bias, or of an embedding.  gain, bias: of a norm.
    table: (N, D) float32, of ids or of positions.
    number: the scale of scores or of states, or the epsilon of a norm.
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
        at = [number for number, op in enumerate(self.ops) if op.kind == SELF]
        if not at:
            raise CannotCompile("nothing that reads a cache")
        last = replace(self.ops[at[-1]], kind=KEEP)
        return OpList([*self.ops[: at[-1]], last], self.widths)


def with_sums_joined(ops: list[Op], last: int) -> list[Op]:
    """Sums that follow a product directly become part of it."""
    found: list[Op] = []
    for at, op in enumerate(ops):
        before = found[-1] if found else None
        later = {read for other in ops[at + 1 :] for read in other.reads} | {last}
        if (
            op.kind == ADD
            and before is not None
            and (before.kind, before.other) == (LINEAR, ABSENT)
            and before.target in op.reads
            and before.target not in later
            and op.source != op.other
        ):
            added = next(read for read in op.reads if read != before.target)
            found[-1] = replace(before, target=op.target, other=added)
        else:
            found.append(op)
    return found


def in_few_registers(ops: list[Op], widths: list[int], last: int) -> OpList:
    """Registers that nothing reads any more are written again; the result is in the first.

    Raises:
        CannotCompile: the last product still reads what came in, or there is nothing.
    """
    end = ops[-1] if ops else None
    if end is None or end.target != last or (end.kind != ADD and 0 in end.reads):
        raise CannotCompile("a result that is not the last operation")
    final = {read: at for at, op in enumerate(ops) for read in op.reads}
    here, packed = {ABSENT: ABSENT, 0: 0}, [widths[last]]
    free: dict[int, list[int]] = {}  # by width
    found = []
    for at, op in enumerate(ops):
        width = widths[op.target]
        spare = free.setdefault(width, [])
        if op is end:
            here[last] = 0
        elif spare:
            here[op.target] = spare.pop()
        else:
            here[op.target] = len(packed)
            packed.append(width)
        found.append(
            replace(op, target=here[op.target], source=here[op.source], other=here[op.other])
        )
        for read in {read for read in op.reads if read > 0 and final[read] == at}:
            free.setdefault(widths[read], []).append(here[read])
    return OpList(found, packed)
