"""python -m benchmarks.document REPORT.json...: what was measured, into docs/performance.md.

Tables go between the two lines that mark their place, the bars into docs/performance.svg. Of a work
that several reports have, the last counts; so works can be measured one at a time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.workers import ROOT

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def main() -> None:
    """Read the reports, write the page and the picture."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    found = merged([json.loads(Path(name).read_text()) for name in sys.argv[1:]])
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(put(text, tables.markdown(found, level="###")), encoding="utf-8")
    PAGE.with_suffix(".svg").write_text(tables.bars(found["works"]).svg(), encoding="utf-8")


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """One report of all: the newest of each work, the highest of each ceiling."""
    works: dict[str, Any] = {}
    ceilings: dict[str, float] = {}
    rounds = set()
    for report in reports:
        works |= {work["name"]: work for work in report["works"]}
        rounds.add(report["rounds"])
        for name, value in report["ceilings"].items():
            ceilings[name] = max(value, ceilings.get(name, 0.0))
    return {
        "machine": reports[-1]["machine"],
        "rounds": "-".join(str(n) for n in sorted({min(rounds), max(rounds)})),
        "ceilings": ceilings,
        "works": list(works.values()),
    }


def put(text: str, found: str) -> str:
    """The text with `found` between the marks.

    Raises:
        SystemExit: the marks are not there.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} must have the lines {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n\n{found.strip()}\n\n{END}{after}"


if __name__ == "__main__":
    main()
