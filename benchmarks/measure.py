"""Timing that holds on a noisy machine: the two sides in turn, the ratio round by round."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch


@dataclass(frozen=True)
class Duel:
    """`work` units done by us and by the peer, `rounds` times in turn; seconds of each round."""

    name: str
    unit: str
    work: float
    ours: list[float]
    theirs: list[float]
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        """How many times faster we are, round by round."""
        return [b / a for a, b in zip(self.ours, self.theirs, strict=True)]

    def row(self) -> dict[str, object]:
        """Medians, and the spread of the ratio."""
        return {
            "work": self.name,
            "unit": self.unit,
            "regard": self.work / median(self.ours),
            "transformers": self.work / median(self.theirs),
            "ratio": median(self.ratios),
            "lowest": min(self.ratios),
            "highest": max(self.ratios),
            "note": self.note,
        }


def duel(
    name: str,
    unit: str,
    work: float,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    rounds: int,
    note: str = "",
) -> Duel:
    """Run both once to warm up, then in turn."""
    ours(), theirs()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, run in zip(times, (ours, theirs), strict=True):
            began = time.perf_counter()
            run()
            side.append(time.perf_counter() - began)
    return Duel(name, unit, work, *times, note)


def ceilings() -> dict[str, float]:
    """What the hardware can do: GFLOP/s of matrix products, GB/s of copying."""
    found = {}
    for kind in (torch.float32, torch.bfloat16):
        a, b = torch.randn(1024, 1024).to(kind), torch.randn(1024, 1024).to(kind)
        found[f"matrix {str(kind).removeprefix('torch.')} GFLOP/s"] = (
            2
            * 1024**3
            / _best(
                lambda a=a, b=b: a @ b  # type: ignore[misc]
            )
            / 1e9
        )
    source = torch.zeros(2**27)
    target = torch.empty_like(source)
    # A copy reads and writes every byte.
    found["copy GB/s"] = 2 * source.nbytes / _best(lambda: target.copy_(source)) / 1e9
    return found


def _best(run: Callable[[], object], rounds: int = 7) -> float:
    run()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)
