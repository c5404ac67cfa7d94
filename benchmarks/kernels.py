"""python -m benchmarks.kernels [NAMES] [--only WORK] [--rounds 3] [--out FOLDER]

What each implementation of an operation is worth: every benchmark of ours with it and without it
(REGARD_WITHOUT), in turn. NAMES: implementations, such as attention.compiled; all that the
benchmark calls without it. Which ones it calls is counted first. A ratio above 1 means that the
benchmark is faster with the implementation. Into FOLDER goes kernels.json; the table is printed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Work, measure
from benchmarks.options import Options
from benchmarks.workers import Condition, Failed, Worker, prepare

WORKS = ("decoding", "translation", "training", "encoding", "recurrent", "evaluation")
TOGETHER = 4  # conditions beside the full one that are in memory at the same time
OURS = "regard"


def main() -> None:
    """Measure and print."""
    given = _arguments()
    options = Options(given.cache, given.data, given.threads, given.quick, False, None)
    given.out.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    for work in _works(options):
        if given.only and given.only not in work.name:
            continue
        row = _measured(work, options, given.rounds, given.names)
        found.append(row)
        print(_table(row), flush=True)
        (given.out / "kernels.json").write_text(json.dumps(found, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    data = Path(__file__).parents[2] / "shared" / "data"
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--only", help="works whose name contains this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs") / "benchmarks")
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "regard" / "benchmarks"
    )
    parser.add_argument("--data", type=Path, default=data if data.exists() else None)
    return parser.parse_args()


def _works(options: Options) -> Iterator[Work]:
    """One for each condition of ours: a work with that condition alone."""
    for name in WORKS:
        for work in importlib.import_module(f"benchmarks.{name}").works(options):
            for condition in work.conditions:
                if condition.name.startswith(OURS):
                    yield replace(
                        work, name=f"{work.name}: {condition.name}", conditions=[condition]
                    )


def _measured(work: Work, options: Options, rounds: int, names: list[str]) -> dict[str, Any]:
    (whole,) = work.conditions
    whole = replace(whole, name=OURS)
    prepare(whole, options.threads)
    calls = _calls(whole, options.threads)
    tried = [name for name in calls if not names or name in names]
    ratios: dict[str, list[float]] = {}
    rates: list[float] = []
    for start in range(0, len(tried), TOGETHER):
        without = [
            replace(
                whole,
                name=name,
                prepare="",
                environment=whole.environment | {"REGARD_WITHOUT": name},
            )
            for name in tried[start : start + TOGETHER]
        ]
        one = replace(work, conditions=[replace(whole, prepare=""), *without], goals={}, least={})
        found = measure(
            replace(one, judge=lambda results: {}),
            rounds,
            options.threads,
            lambda line: print(line, file=sys.stderr),
        )
        rows = {row["condition"]: row for row in found.rows()}
        rates.append(rows[OURS]["rate"])
        ratios |= {name: row["ratios"] for name, row in rows.items() if name != OURS}
    return {
        "name": work.name,
        "unit": work.unit,
        "rate": median(rates) if rates else None,
        "calls": calls,
        "ratios": ratios,
    }


def _calls(condition: Condition, threads: int) -> dict[str, int]:
    """How often a turn calls each implementation that it calls at all, making included."""
    counted = replace(
        condition,
        made="benchmarks.kernels:Counted",
        settings={"made": condition.made, "settings": condition.settings},
        prepare="",
    )
    with Worker(counted, threads) as one:
        try:
            one.make()
            found: dict[str, int] = one.call("turn").result
        except Failed as error:
            raise SystemExit(f"{condition.name}: {error}") from None
    return found


class Counted:
    """Instead of the object of a condition: its turn gives the calls of each implementation."""

    def __init__(self, made: str, settings: dict[str, Any], threads: int):
        from regard import ops
        from regard.registry import implementation_names

        implementation_names()  # imports all that registers some
        self.calls: Counter[str] = Counter()
        for op in ops.OPERATIONS.values():
            op.implementations = [
                replace(one, run=self._counted(one.name, one.run)) for one in op.implementations
            ]
        module_name, _, name = made.partition(":")
        kind = getattr(importlib.import_module(module_name), name)
        self.object = kind(**settings, threads=threads)

    def _counted(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            return run(*args, **kwargs)

        return call

    def turn(self) -> dict[str, int]:
        """Name of an implementation -> calls."""
        if hasattr(self.object, "ready"):
            self.object.ready()
        self.object.turn()
        return dict(self.calls)


def _table(row: dict[str, Any]) -> str:
    lines = [f"\n### {row['name']}\n"]
    if row["rate"] is not None:
        lines.append(f"{row['rate']:,.4g} {row['unit']} with all\n")
    lines += ["| implementation | calls | faster by |", "|---|---:|---|"]
    for name, ratios in sorted(row["ratios"].items(), key=lambda one: -median(one[1])):
        text = f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        lines.append(f"| {name} | {row['calls'][name]:,} | {text} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
