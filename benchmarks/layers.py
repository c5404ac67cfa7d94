"""python -m benchmarks.layers [--quick] [--counts] [--document] [--out FOLDER]

Table 1 of "Attention Is All You Need" (Vaswani et al. 2017), measured: what a layer of each kind
costs by length and width, which of its operations must wait for each other, and how many steps lie
between the first position and the last.

    multiplications   counted on the operations of a forward pass
    operations in a row   the longest chain in the graph of the gradient
    path   after how many layers (of a recurrent layer: steps) the last position's gradient reaches
           the first position
    seconds   of one core, forward; processor time, the least of several rounds

Into FOLDER go layers.json, layers.md and layers.svg. With --document the table and the plots of
docs/reports/layer-costs.md are written, too. With --counts nothing is timed, as on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import machine
from benchmarks.document import put
from benchmarks.workers import ROOT
from regard import ops
from regard.attention.attend import PLAIN, Dot, attend
from regard.layers.recurrent import RNN
from regard.ops import KeyMask
from regard.visual import Curves, Series

PAGE = ROOT / "docs/reports/layer-costs.md"
KERNEL, HALF_WINDOW = 3, 16
LENGTHS, WIDTHS = (64, 128, 256, 512, 1024, 2048, 4096), (64, 512)
QUICK_LENGTHS, QUICK_WIDTHS = (32, 64), (8, 16)
CHAIN_LENGTHS, PATH_LENGTHS = (32, 64), (9, 33, 65)
ROUNDS, SECONDS = 5, 0.1


# ---------------------------------------------------------------------------------- the layers


class Attention(nn.Module):
    """softmax(x x^T / sqrt(d)) x: without projections, which the table leaves out."""

    def __init__(self, width: int):
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return attend(x, x, x)


class RestrictedAttention(nn.Module):
    """Each position attends to those at most `half` away, by blocks with their neighbours."""

    def __init__(self, width: int, half: int = HALF_WINDOW):
        super().__init__()
        self.half = half

    def forward(self, x: Tensor) -> Tensor:
        half, count, width = self.half, x.size(1), x.size(2)
        blocks = -(-count // half)
        padded = F.pad(x, (0, 0, half, blocks * half - count + half))[0]  # (half + N + half, D)
        query = padded[half:-half].view(blocks, half, width)
        keys = padded.unfold(0, 3 * half, half).mT  # (blocks, 3 half, D)
        key = torch.arange(-half, 2 * half, device=x.device)
        query_at = torch.arange(half, device=x.device)[:, None]
        at = (
            torch.arange(blocks, device=x.device)[:, None, None] * half + key
        )  # (blocks, 1, 3 half)
        grid = ((key - query_at).abs() <= half) & (at >= 0) & (at < count)
        return attend(query, keys, keys, mask=KeyMask(grid)).flatten(0, 1)[None, :count]


class Recurrent(nn.Module):
    """h_t = tanh(W x_t + U h_{t-1} + b)"""

    def __init__(self, width: int):
        super().__init__()
        self.layer = RNN(width, width)

    def forward(self, x: Tensor) -> Tensor:
        start = self.layer.empty(1, x)
        return self.layer(x, *start)[0]

    def step(self, x: Tensor, hidden: Tensor) -> Tensor:
        """One step at all positions: each reads the state that the one before had (1, N, D)."""
        before = F.pad(hidden, (0, 0, 1, 0))[:, :-1]
        return torch.tanh(self.layer.input(x) + self.layer.recurrent(before))


class Convolution(nn.Module):
    """Each position reads itself and the k - 1 before it, `dilation` apart."""

    def __init__(self, width: int, kernel: int = KERNEL, dilation: int = 1):
        super().__init__()
        self.left = (kernel - 1) * dilation
        self.layer = nn.Conv1d(width, width, kernel, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.pad(x.mT, (self.left, 0))).mT


@dataclass(frozen=True)
class Kind:
    """A row of the table.

    cost, path: of length n and width d, as the table has them; constants are left out of `cost`.
    """

    name: str
    make: Callable[[int], nn.Module]
    cost: str
    waits: str
    path_formula: str
    cost_of: Callable[[int, int], float]
    path_of: Callable[[int], int]


KINDS = (
    Kind("self-attention", Attention, "n² d", "1", "1", lambda n, d: n * n * d, lambda n: 1),
    Kind("recurrent", Recurrent, "n d²", "n", "n", lambda n, d: n * d * d, lambda n: n),
    Kind(
        f"convolution, k = {KERNEL}",
        Convolution,
        "k n d²",
        "1",
        "(n - 1) / (k - 1)",
        lambda n, d: KERNEL * n * d * d,
        lambda n: math.ceil((n - 1) / (KERNEL - 1)),
    ),
    Kind(
        f"convolution, dilated k^layer, k = {KERNEL}",
        Convolution,
        "k n d²",
        "1",
        "log_k n",
        lambda n, d: KERNEL * n * d * d,
        lambda n: next(layers for layers in range(1, n) if KERNEL**layers >= n),
    ),
    Kind(
        f"restricted self-attention, r = {2 * HALF_WINDOW + 1}",
        RestrictedAttention,
        "r n d",
        "1",
        "2 (n - 1) / (r - 1)",
        lambda n, d: (2 * HALF_WINDOW + 1) * n * d,
        lambda n: math.ceil((n - 1) / HALF_WINDOW),
    ),
)


# ------------------------------------------------------------------------------ what is measured


def multiplications(layer: nn.Module, length: int, width: int) -> int:
    """Of a forward pass, in the plain form of every operation."""
    x = torch.randn(1, length, width)
    with FlopCounterMode(display=False) as counter, torch.no_grad(), ops.reference():
        layer(x)
    return counter.get_total_flops() // 2


def chain(layer: nn.Module, length: int, width: int = 4) -> int:
    """The longest chain of operations that wait for each other, in a forward pass."""
    x = torch.randn(1, length, width, requires_grad=True)
    with ops.reference():
        last = layer(x).grad_fn
    order, longest = [], {}  # a walk in depth without recursion: the chain may be long
    waiting: list[tuple[Any, bool]] = [(last, False)]
    while waiting:
        node, is_done = waiting.pop()
        if is_done:
            order.append(node)
        elif node not in longest:
            longest[node] = 0
            waiting.append((node, True))
            waiting += [(one, False) for one, _ in node.next_functions if one is not None]
    for node in order:
        below = [longest[one] for one, _ in node.next_functions if one is not None]
        longest[node] = 1 + max(below, default=0)
    return longest[last]


def path(kind: Kind, length: int, width: int = 4) -> int:
    """After how many layers, or steps, the last position depends on the first one."""
    torch.manual_seed(0)
    x = torch.randn(1, length, width, dtype=torch.float64, requires_grad=True)
    hidden = torch.zeros_like(x) if kind.make is Recurrent else x
    layer = kind.make(width).double()
    for count in range(1, length + 1):
        if isinstance(layer, Recurrent):
            hidden = layer.step(x, hidden)
        elif "dilated" in kind.name:
            hidden = Convolution(width, dilation=KERNEL ** (count - 1)).double()(hidden)
        else:
            hidden = layer(hidden)
        (gradient,) = torch.autograd.grad(hidden[0, -1].sum(), x, retain_graph=True)
        if gradient[0, 0].any():
            return count
    raise AssertionError(f"{kind.name}: the last of {length} positions never sees the first")


def seconds(layer: nn.Module, length: int, width: int, least: float) -> float:
    """Processor time of one forward pass: the least of several rounds of `least` seconds."""
    x, found = torch.randn(1, length, width), math.inf
    with torch.no_grad():
        layer(x)
        for _ in range(ROUNDS):
            passes, start = 0, time.process_time()
            while not passes or time.process_time() - start < least:
                layer(x)
                passes += 1
            found = min(found, (time.process_time() - start) / passes)
    return found


def measured(
    kind: Kind, lengths: Sequence[int], widths: Sequence[int], least: float | None
) -> dict[str, Any]:
    """A row, for layers.json; `least` of None: without times."""
    torch.manual_seed(0)
    made = {width: kind.make(width).eval() for width in widths}
    each = [(n, d) for d in widths for n in lengths]
    return {
        "layer": kind.name,
        "cost": kind.cost,
        "multiplications": [[n, d, multiplications(made[d], n, d)] for n, d in each],
        "chain": [[n, chain(kind.make(4), n)] for n in CHAIN_LENGTHS],
        "path": [[n, path(kind, n)] for n in PATH_LENGTHS],
        "seconds": [[n, d, seconds(made[d], n, d, least)] for n, d in each if least is not None],
    }


# ---------------------------------------------------------------------------------- what is shown


def table(found: dict[str, Any]) -> str:
    """Markdown: the formulas, and what was measured beside them."""
    lengths, widths = found["lengths"], found["widths"]
    is_timed = bool(found["rows"][0]["seconds"])
    pairs = [(n, d) for d in widths for n in (lengths[0], lengths[-1]) if is_timed]
    head = ["layer", "cost", "multiplications", "operations in a row", "path to the last position"]
    head += [f"ms, n = {n}, d = {d}" for n, d in pairs]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for kind, row in zip(KINDS, found["rows"], strict=True):
        (n, first), (m, second) = row["chain"]
        grows = (second - first) / (m - n)
        waits = f"{second} at any n" if second == first else f"{grows:g} n + {first - grows * n:g}"
        counts = {count / kind.cost_of(n, d) for n, d, count in row["multiplications"]}
        factor = " to ".join(f"{one:.3g}" for one in sorted({min(counts), max(counts)}))
        paths = ", ".join(f"{length} of {n}" for n, length in row["path"])
        times = {(n, d): each for n, d, each in row["seconds"]}
        cells = [row["layer"], kind.cost, f"{factor} times {kind.cost}", waits]
        cells += [f"{kind.path_formula}: {paths}", *(f"{1e3 * times[one]:.3g}" for one in pairs)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def curves(found: dict[str, Any], width: int) -> Curves:
    """Time by length, both as logarithms."""
    series = tuple(
        Series(
            row["layer"],
            tuple((math.log2(n), math.log10(each)) for n, d, each in row["seconds"] if d == width),
        )
        for row in found["rows"]
        if "dilated" not in row["layer"]  # a layer of it costs what the other convolution costs
    )
    return Curves(series, f"a layer of width {width}", "log2 length", "log10 seconds")


def main() -> None:
    """Measure, print, write."""
    given = _arguments()
    torch.set_num_threads(1)
    lengths, widths = (QUICK_LENGTHS, QUICK_WIDTHS) if given.quick else (LENGTHS, WIDTHS)
    least = None if given.counts else 0.001 if given.quick else SECONDS
    about = {"machine": machine.described(1), "lengths": lengths, "widths": widths}
    found = about | {"rows": list(map(partial(_row, lengths, widths, least), KINDS))}
    given.out.mkdir(parents=True, exist_ok=True)
    text = table(found)
    print(text)
    (given.out / "layers.json").write_text(json.dumps(found, indent=1) + "\n")
    (given.out / "layers.md").write_text(text)
    if not given.counts:
        curves(found, widths[-1]).save(given.out / "layers.svg")
    if given.document:
        document(found)


def document(found: dict[str, Any]) -> None:
    """Write the table and the plots of docs/reports/layer-costs.md."""
    said = table(found)
    if found["rows"][0]["seconds"]:
        curves(found, found["widths"][-1]).save(PAGE.with_suffix(".svg"))
        said += f"\n![Time of a layer by length]({PAGE.stem}.svg)\n"
        said += f"\nTimes are those of one core of {found['machine']['processor']}.\n"
    PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), said), encoding="utf-8")
    scores().save(PAGE.with_name("score-variance.svg"))


def scores() -> Curves:
    """The variance of q · k by d_k, with and without the scale, of vectors from N(0, 1)."""
    series = []
    for name, score in (("q · k", PLAIN), ("q · k / sqrt(d_k)", Dot())):
        points = []
        for power in range(0, 11, 2):
            generator = torch.Generator().manual_seed(0)
            drawn = torch.randn(256, 17, 2**power, generator=generator, dtype=torch.float64)
            variance = score(*drawn.split([1, 16], 1)).var(correction=0).item()
            points.append((float(power), math.log2(variance)))
        series.append(Series(name, tuple(points)))
    return Curves(tuple(series), "variance of scores", "log2 d_k", "log2 variance")


def _row(
    lengths: Sequence[int], widths: Sequence[int], least: float | None, kind: Kind
) -> dict[str, Any]:
    return measured(kind, lengths, widths, least)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.layers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="tiny layers, in seconds")
    parser.add_argument("--counts", action="store_true", help="without times")
    parser.add_argument("--document", action="store_true", help="write docs/reports/layer-costs.md")
    parser.add_argument("--out", type=Path, default=Path("runs") / "benchmarks")
    return parser.parse_args()


if __name__ == "__main__":
    main()
