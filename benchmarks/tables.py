"""What was measured, as markdown and as bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.visual.drawing import Drawing, Label, Rect, Shape, clip, stack
from regard.visual.drawing import Path as Line

COLUMNS = (
    "condition",
    "{unit}",
    "ours is faster by",
    "goal",
    "of the ceiling",
    "memory",
    "quality",
)


def markdown(found: dict[str, Any]) -> str:
    """The whole report."""
    machine, ceilings = found["machine"], found["ceilings"]
    parts = [
        "# Measured\n",
        ", ".join(f"{name} {value}" for name, value in machine.items()) + "\n",
        f"{found['rounds']} rounds in turn; medians, and ratios round by round with their range.\n",
        "Ceilings: " + ", ".join(f"{name} {value:,.0f}" for name, value in ceilings.items()) + "\n",
    ]
    return "\n".join([*parts, *(table(work) for work in found["works"])])


def table(work: dict[str, Any]) -> str:
    """One work: the fastest condition first."""
    columns = [column.format(unit=work["unit"]) for column in COLUMNS]
    lines = [f"## {work['name']}\n"]
    if work["note"]:
        lines += [work["note"] + "\n"]
    lines += ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * 5 + "---|"]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in work["rows"]]
    lines += [f"\nLeft out: {name}, {why}" for name, why in work["left out"].items()]
    return "\n".join(lines) + "\n"


def _cells(row: dict[str, Any]) -> list[str]:
    ratio = goal = share = ""
    if "ratio" in row:
        ratio = f"{row['ratio']:.2f} ({row['lowest']:.2f}-{row['highest']:.2f})"
        if row["goal"]:
            goal = f"{row['goal']:g} " + ("✓" if row["ratio"] >= row["goal"] else "✗")
    if "share" in row:
        share = f"{row['share']:.0%} of {row['ceiling'].rsplit(' ', 1)[0]}"
    memory = f"{row['memory MB']:,.0f} MB" if row["memory MB"] else ""
    return [row["condition"], rate(row["rate"]), ratio, goal, share, memory, row["quality"]]


def rate(value: float) -> str:
    """Three digits, or all of the whole number."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def bars(works: list[dict[str, Any]]) -> Drawing:
    """A chart for each work, one under another."""
    return stack([_chart(work) for work in works], "speed beside the peers", gap=26)


def _chart(work: dict[str, Any], width: float = 640, left: float = 220) -> Drawing:
    rows = work["rows"]
    most = max((row["rate"] for row in rows), default=1.0)
    shapes: list[Shape] = [Label(8, 14, f"{work['name']}, {work['unit']}", 13.5, bold=True)]
    for number, row in enumerate(rows):
        y = 34 + 22 * number
        long = (width - left - 90) * row["rate"] / most
        ours = row["condition"].startswith("regard")
        shapes.append(Label(left - 8, y + 7, clip(row["condition"], 34), 11.5, "end"))
        shapes.append(Rect(left, y, long, 14, "accent" if ours else "muted"))
        per_turn = [row["rate"] * _median(row["seconds"]) / each for each in row["seconds"]]
        ends = [left + long * value / row["rate"] for value in (min(per_turn), max(per_turn))]
        shapes.append(Line(((ends[0], y + 7), (ends[1], y + 7)), "ink", 1.2))
        shapes.append(
            Label(max(ends[1], left + long) + 6, y + 7, rate(row["rate"]), 11, fill="muted")
        )
    return Drawing(width, 34 + 22 * len(rows), tuple(shapes), work["name"])


def _median(values: list[float]) -> float:
    from statistics import median

    return median(values)


def write(found: dict[str, Any], folder: Path) -> None:
    """report.md, report.json, report.svg, and report.png where matplotlib is installed."""
    import json

    from regard.errors import MissingExtra
    from regard.visual.canvas import save_png

    folder.mkdir(parents=True, exist_ok=True)
    drawing = bars(found["works"])
    (folder / "report.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown(found), encoding="utf-8")
    (folder / "report.svg").write_text(drawing.svg(), encoding="utf-8")
    try:
        save_png(drawing, folder / "report.png", scale=1.5)
    except MissingExtra:
        pass  # the SVG shows the same
