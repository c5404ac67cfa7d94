"""python -m benchmarks.document [REPORT.json...]: writes docs/reference/measurements.md.

It holds all tables. The bars go into docs/reports/performance.svg, the overview of the README
into docs/reports/speed.svg. Without arguments the reports of
benchmarks/measured/ are read. Of a work that several reports have, the turns of all of them count:
those at rest give rates and ratios, those under load a second column of ratios. So works can be
measured one at a time, on several days and on several machines.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import tables
from benchmarks.workers import ROOT

REPORTS = ROOT / "docs/reports"
TABLES = ROOT / "docs/reference/measurements.md"
HEAD = """# Measured configurations

Every configuration that was measured for the report on [performance](../reports/performance.md),
which says how. The page is written by `python -m benchmarks.document` from `benchmarks/measured/`.

"""
MEASURED = ROOT / "benchmarks" / "measured"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def main() -> None:
    """Read the reports, write the page and the picture."""
    files = sys.argv[1:] or sorted(MEASURED.glob("*.json"))
    if not files or sys.argv[1:2] == ["--help"]:
        raise SystemExit(__doc__)
    found = merged([json.loads(Path(name).read_text(encoding="utf-8")) for name in files])
    TABLES.write_text(HEAD + tables.markdown(found), encoding="utf-8")
    for name, drawing in (("performance", tables.bars), ("speed", tables.overview)):
        (REPORTS / f"{name}.svg").write_text(drawing(found["works"]).svg(), encoding="utf-8")


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """One report of all: the turns of each work together, the highest of each ceiling."""
    works: dict[str, Any] = {}
    ceilings: dict[str, float] = {}
    for report in reports:
        for work in report["works"]:
            known = works.setdefault(work["name"], work | {"rows": [], "left out": {}})
            _add(known, work, loaded=report["load"] > 0)
        for name, value in report["ceilings"].items():
            ceilings[name] = max(value, ceilings.get(name, 0.0))
    for work in works.values():
        work["rows"] = sorted((_summed(work, row) for row in work["rows"]), key=_slowness)
    rounds = sorted({report["rounds"] for report in reports})
    return {
        "machine": reports[-1]["machine"],
        "rounds": "-".join(str(n) for n in dict.fromkeys([rounds[0], rounds[-1]])),
        "load": 0,
        "ceilings": ceilings,
        "works": list(works.values()),
    }


def _add(known: dict[str, Any], work: dict[str, Any], loaded: bool) -> None:
    """Put the rows of a report to those that are known by the name of their condition."""
    rows = {row["condition"]: row for row in known["rows"]}
    for new in work["rows"]:
        row = rows.get(new["condition"])
        if row is None:
            row = {**new, "seconds": [], "others": [], "ratios": [], "ratios under load": []}
            known["rows"].append(row)
        row["ratios under load" if loaded else "ratios"] += new.get("ratios", [])
        if not loaded:
            row["seconds"] += new["seconds"]
            row["others"] += new["others"]
            row["quality"] = new["quality"] or row["quality"]
        row["memory MB"] = max(filter(None, [row["memory MB"], new["memory MB"]]), default=None)
    known["left out"] |= work["left out"]


def _summed(work: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """A row with the rate of all its turns at rest.

    Raises:
        SystemExit: the condition was measured under load alone.
    """
    if not row["seconds"]:
        raise SystemExit(f"{work['name']}: {row['condition']} was not measured at rest.")
    return row | {"rate": row["amount"] / median(row["seconds"])}


def _slowness(row: dict[str, Any]) -> float:
    return -float(row["rate"])


def put(text: str, found: str) -> str:
    """The text with `found` between the marks.

    Raises:
        SystemExit: the marks are not there.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"The page must have the lines {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n\n{found.strip()}\n\n{END}{after}"


if __name__ == "__main__":
    main()
