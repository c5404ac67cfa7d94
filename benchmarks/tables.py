"""What was measured, as markdown and as bars."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median
from typing import Any

from regard.errors import MissingExtra
from regard.visual.drawing import (
    Circle,
    Drawing,
    Label,
    Polyline,
    Rect,
    Shape,
    clip,
    save_png,
    stack,
)

AT_REST = 0.1  # cores that other programs may use in a turn at rest
WORDS = ("configuration", "quality")


def markdown(found: dict[str, Any], level: str = "##") -> str:
    """The whole report; works have headings of this level."""
    machine, ceilings = found["machine"], found["ceilings"]
    parts = [
        "; ".join(f"{name} {value}" for name, value in machine.items()) + ".\n",
        f"{found['rounds']} rounds in turn; medians, and speed-ups round by round with their range"
        + (f"; {load} other programs ran meanwhile" if (load := found["load"]) else "")
        + ".\n",
        "Ceilings: "
        + ", ".join(f"{name} {value:,.0f}" for name, value in ceilings.items())
        + ".\n",
    ]
    return "\n".join([*parts, *(table(work, ceilings, level) for work in found["works"])])


def table(work: dict[str, Any], ceilings: dict[str, float], level: str = "##") -> str:
    """One work: the fastest condition first. An empty column is left out."""
    rows = [_cells(row, work["unit"], ceilings) for row in work["rows"]]
    columns = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    lines = [f"{level} {work['name']}\n"]
    if work["note"]:
        lines += [work["note"] + "\n"]
    if said := disturbance(work):
        lines += [said + "\n"]
    lines += ["| " + " | ".join(columns) + " |"]
    lines += ["|" + "|".join("---" if name in WORDS else "---:" for name in columns) + "|"]
    lines += ["| " + " | ".join(row[name] for name in columns) + " |" for row in rows]
    lines += [f"\nLeft out: {name}, {why}" for name, why in work["left out"].items()]
    return "\n".join(lines) + "\n"


def disturbance(work: dict[str, Any]) -> str:
    """How many turns other programs disturbed; empty where there were none."""
    turns = [others for row in work["rows"] for others in row["others"]]
    disturbed = [others for others in turns if others > AT_REST]
    if not disturbed:
        return ""
    return (
        f"Other programs used more than {AT_REST:g} of a core in {len(disturbed)} of {len(turns)} "
        f"rounds, {median(disturbed):.2f} cores in the median of these."
    )


def share(row: dict[str, Any], ceilings: dict[str, float]) -> float | None:
    """How much of its ceiling a condition reaches; None where it has none."""
    if row.get("ceiling") not in ceilings:
        return None
    return row["least"] / ceilings[row["ceiling"]] / median(row["seconds"])


def exceeded(work: dict[str, Any], ceilings: dict[str, float]) -> list[str]:
    """The conditions that are faster than their ceiling: it was measured too low."""
    return [row["condition"] for row in work["rows"] if (share(row, ceilings) or 0) > 1]


def _ratio(ratios: list[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if ratios else ""


def _cells(row: dict[str, Any], unit: str, ceilings: dict[str, float]) -> dict[str, str]:
    rest, loaded = row.get("ratios", []), row.get("ratios under load", [])
    goal, reached = "", share(row, ceilings)
    if row["goal"] and rest:
        met = all(median(ratios) >= row["goal"] for ratios in (rest, loaded) if ratios)
        goal = f"{row['goal']:g} " + ("✓" if met else "✗")
    return {
        "configuration": row["condition"],
        unit: number(shown(row, unit)),
        "speed-up of Regard": _ratio(rest),
        "under load": _ratio(loaded),
        "goal": goal,
        "of the ceiling": f"{reached:.0%} of {row['ceiling'].rsplit(' ', 1)[0]}" if reached else "",
        "memory": f"{row['memory MB']:,.0f} MB" if row["memory MB"] else "",
        "quality": row["quality"],
    }


def shown(row: dict[str, Any], unit: str) -> float:
    """Units a second; of what is counted in seconds, the seconds."""
    return 1 / row["rate"] if unit == "seconds" else row["rate"]


def turns_of(row: dict[str, Any], unit: str) -> tuple[float, float]:
    """The least and the most of all turns, as parts of the median."""
    turns = [seconds / median(row["seconds"]) for seconds in row["seconds"]]
    turns = turns if unit == "seconds" else [1 / turn for turn in turns]
    return min(turns), max(turns)


def number(value: float) -> str:
    """Three digits, or all of the whole number."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def bars(works: list[dict[str, Any]]) -> Drawing:
    """A chart for each work, one under another."""
    return stack([_chart(work) for work in works], "speed compared with other libraries", gap=26)


def _chart(work: dict[str, Any], width: float = 640, left: float = 220) -> Drawing:
    rows, unit = work["rows"], work["unit"]
    most = max((shown(row, unit) * turns_of(row, unit)[1] for row in rows), default=1.0)
    shapes: list[Shape] = [Label(8, 14, f"{work['name']}, {unit}", 13.5, bold=True)]
    for index, row in enumerate(rows):
        y, value = 34 + 22 * index, shown(row, unit)
        long = (width - left - 60) * value / most
        ours = row["condition"].startswith("regard")
        low, high = (left + long * end for end in turns_of(row, unit))
        shapes.append(Label(left - 8, y + 7, clip(row["condition"], 34), 11.5, "end"))
        shapes.append(Rect(left, y, long, 14, "accent" if ours else "muted", 0.75))
        shapes.append(Polyline(((low, y + 7), (high, y + 7)), "ink", 1.2))
        shapes.append(Label(max(high, left + long) + 6, y + 7, number(value), 11, fill="muted"))
    return Drawing(width, 34 + 22 * len(rows), tuple(shapes), work["name"])


# The works of the overview, by how their names begin, and what it calls them.
OVERVIEW = {
    "GPT-2 124M, one sequence": "GPT-2, one sequence",
    "GPT-2 124M, 8 sequences": "GPT-2, 8 sequences",
    "GPT-2 124M, time to first token": "GPT-2, a prompt of 1,000",
    "translation, Transformer base, random": "translation, beams of 4",
    "encoding": "sentence vectors, MiniLM",
    "masked words, BERT base": "training BERT base",
    "fine-tuning MiniLM": "fine-tuning MiniLM",
    "LSTM language model 2 x 650, training": "training an LSTM",
    "LSTM language model 2 x 650, one": "LSTM, one sequence",
    "tokenizing": "tokenizing",
}
PEERS = ("sentence-transformers", "transformers", "CTranslate2", "ONNX Runtime", "llama.cpp")
PEERS += ("PyTorch", "tokenizers")


def overview(works: list[dict[str, Any]], left: float = 340, width: float = 640) -> Drawing:
    """How many times a peer's rate ours is: median and range of the rounds, in the peer's fastest
    setting, on a logarithmic axis."""

    def x(ratio: float) -> float:
        return left + (width - left - 20) * (math.log2(ratio) + 1) / (math.log2(12) + 1)

    title = "Speed-up over each library: median and range of the rounds"
    shapes: list[Shape] = [Label(8, 14, title, 12.5, bold=True)]
    y = 30.0
    for beginning, name in OVERVIEW.items():
        work = next(work for work in works if work["name"].startswith(beginning))
        shapes.append(Label(8, y + 7, name, 11.5))
        for peer, ratios in _fastest(work["rows"]).items():
            middle = y + 7
            shapes.append(Label(left - 8, middle, peer, 11, "end", "muted"))
            shapes.append(
                Polyline(((x(min(ratios)), middle), (x(max(ratios)), middle)), "ink", 1.4)
            )
            shapes.append(Circle(x(median(ratios)), middle, 4, "accent"))
            y += 16
        y += 6
    for tick in (0.5, 1, 2, 4, 8):
        line = ((x(tick), 26), (x(tick), y))
        shapes.insert(0, Polyline(line, "muted" if tick == 1 else "faint", 1))
        shapes.append(Label(x(tick), y + 10, f"{tick:g}", 11, "middle", "muted"))
    return Drawing(width, y + 20, tuple(shapes), title)


def _fastest(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Peer -> the ratios beside its fastest setting."""
    found: dict[str, list[float]] = {}
    for row in rows:
        peer = next((peer for peer in PEERS if row["condition"].startswith(peer)), "")
        slower = peer in found and median(found[peer]) <= median(row["ratios"] or [math.inf])
        if peer and row["ratios"] and not slower:
            found[peer] = row["ratios"]
    return found


def write(found: dict[str, Any], folder: Path) -> None:
    """report.md, report.json, report.svg, and report.png where resvg is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    drawing = bars(found["works"])
    (folder / "report.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown(found), encoding="utf-8")
    (folder / "report.svg").write_text(drawing.svg(), encoding="utf-8")
    try:
        save_png(drawing, folder / "report.png", scale=1.5)
    except MissingExtra:
        pass  # the SVG shows the same
