"""Draws the chart at the head of each report from the first table of its page.

    python tools/report_charts.py    writes docs/reports/NAME.svg for each report in CHARTS

So a chart never says anything else than its table; a test compares.
"""

from __future__ import annotations

import re
from pathlib import Path

from regard.visual.drawing import SERIES, Drawing, Label, Rect, Shape, clip

REPORTS = Path(__file__).resolve().parents[1] / "docs" / "reports"
# Report -> the title of its chart, and which columns of the table are bars.
CHARTS = {
    "attention-forms": ("Test BLEU after 400,000 target tokens", ("test BLEU",)),
    "demo": ("The demo: test BLEU, mean of three seeds", ("test BLEU, mean of three seeds",)),
    "long-memory": ("Test perplexity per word; less is better", ("BBC news", "Penn Treebank")),
    "lstm-to-gpt": ("Perplexity per word; less is better", ("perplexity per word",)),
    "results": ("What recipes give, and what was reported", ("here", "reported elsewhere")),
    "tasks": ("What tasks reach, and what they are compared with", ("here", "compared with")),
}
NUMBER = re.compile(r"\d[\d,]*\.?\d*")
LEFT, RIGHT, BAR = 300, 380, 13  # pixels: labels, bars, the height of a bar


def first_table(page: str) -> list[dict[str, str]]:
    """The rows of the first table of a page: cell by column, without links and code marks."""
    block = re.search(r"(?:^\|.*\n)+", page, re.M)
    if block is None:
        raise ValueError("the page has no table")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", block[0])
    header, _, *rows = [[c.strip() for c in line.split("|")[1:-1]] for line in plain.splitlines()]
    return [dict(zip(header, row, strict=True)) for row in rows]


def value(cell: str) -> float | None:
    """The first number of a cell; None where it has none."""
    number = NUMBER.search(cell)
    return float(number[0].replace(",", "")) if number else None


def chart(title: str, rows: list[dict[str, str]], columns: tuple[str, ...]) -> Drawing:
    """Horizontal bars, a group for each row that has numbers, with the numbers beside them."""
    values = [[value(row[column]) for column in columns] for row in rows]
    scale = RIGHT / max(number for row in values for number in row if number is not None)
    shapes: list[Shape] = [Label(8, 14, title, 12.5, bold=True)]
    y = 32.0
    for number, column in enumerate(columns if len(columns) > 1 else ()):
        shapes.append(Rect(LEFT + 150 * number, y - 5, 10, 10, SERIES[number]))
        shapes.append(Label(LEFT + 16 + 150 * number, y, column, 11, fill="muted"))
    y += 18 * (len(columns) > 1)
    for row, numbers in zip(rows, values, strict=True):
        bars = [(n, SERIES[i]) for i, n in enumerate(numbers) if n is not None]
        middle = y + BAR * len(bars) / 2
        shapes.append(Label(LEFT - 8, middle, clip(next(iter(row.values())), 46), 11, "end"))
        for count, colour in bars:
            shapes.append(Rect(LEFT, y + 1, count * scale, BAR - 2, colour))
            text = f"{count:,g}" if count < 1e6 else f"{count:,.0f}"
            shapes.append(Label(LEFT + count * scale + 5, y + BAR / 2, text, 10.5, fill="muted"))
            y += BAR
        y += 7
    return Drawing(LEFT + RIGHT + 60, y, tuple(shapes), title)


def svg(report: str) -> str:
    """The chart of a report, from its page."""
    title, columns = CHARTS[report]
    page = (REPORTS / f"{report}.md").read_text(encoding="utf-8")
    return chart(title, first_table(page), columns).svg()


if __name__ == "__main__":
    for report in CHARTS:
        (REPORTS / f"{report}.svg").write_text(svg(report), encoding="utf-8")
