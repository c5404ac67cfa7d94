"""A run as one file that opens without network: curves, scores, samples, pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from regard.file_writing import write_text
from regard.visual.curves import Curves, Series, short
from regard.visual.drawing import visible
from regard.visual.page import page
from regard.visual.picture import Picture, PictureColumn, PictureRow
from regard.visual.table import Table

RATE = "_per_s"  # behind the name of what a task counts: tokens, examples

# How the quantities of metrics.jsonl are named and grouped: (title, unit, which names belong).
GROUPS: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
    ("Loss", "", lambda name: "loss" in name or "cross_entropy" in name),
    ("Perplexity", "", lambda name: "perplexity" in name or name.endswith("ppl")),
    ("Learning rate", "", lambda name: name in ("lr", "learning_rate", "rate")),
    ("Speed", "", lambda name: name.endswith(RATE)),
    ("Gradient norm", "", lambda name: "norm" in name),
)
# What counts the way or tells about the run, and is no curve.
COUNTERS = ("update", "step", "tokens", "epoch", "seconds", "seed")
AXES = ("update", "step", "tokens")  # along which, the first that there is
MOST_POINTS = 600  # of a curve: more cannot be told apart on the paper


@dataclass(frozen=True)
class ReportSample:
    """A sentence, what the model made of it, and what a person did."""

    source: str
    hypothesis: str
    reference: str = ""


@dataclass(frozen=True)
class RunReport:
    """What `report.html` shows, all of it plain data.

    facts: what a reader wants first, by name: model, data, parameters, time.
    scores: final scores by name; several systems: one mapping each, by the system's name.
    events: the lines of metrics.jsonl; each number beside "update" becomes a curve.
    samples: by the system's name.  pictures: (heading, picture).
    """

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    events: Sequence[Mapping[str, Any]] = ()
    samples: Mapping[str, Sequence[ReportSample]] = field(default_factory=dict)
    pictures: Sequence[tuple[str, Picture]] = ()
    comparison: Picture | None = None

    def html(self) -> str:
        """The whole page; every text in it is escaped."""
        sections = (
            self._head(),
            _section("Comparison", self.comparison.body() if self.comparison else ""),
            _section("Scores", self._scores()),
            _section("Training", self._curves()),
            _section("Samples", "".join(self._samples())),
            *(_section(heading, picture.body()) for heading, picture in self.pictures),
        )
        return page(self.title, "".join(sections))

    def save(self, path: str | Path) -> Path:
        """Write the page; a report that is half written never stands under its name."""
        path = Path(path)
        write_text(path, self.html())
        return path

    def _head(self) -> str:
        facts = "".join(
            f"<dt>{_inert(name)}</dt><dd>{_inert(value)}</dd>" for name, value in self.facts.items()
        )
        listed = f'<dl class="rg-facts">{facts}</dl>' if facts else ""
        return f"<h1>{_inert(self.title)}</h1>{listed}"

    def _scores(self) -> str:
        names = list(dict.fromkeys(name for scores in self.scores.values() for name in scores))
        rows = [
            [system, *(_figure(scores.get(name, "")) for name in names)]
            for system, scores in self.scores.items()
        ]
        return Table.of(["", *names], rows).body() if rows else ""

    def _curves(self) -> str:
        charts = training_curves(self.events)
        return PictureRow(tuple(charts.parts)).body() if charts.parts else ""

    def _samples(self) -> list[str]:
        parts = []
        for system, samples in self.samples.items():
            rows = [[sample.source, sample.hypothesis, sample.reference] for sample in samples]
            head = ["source", "hypothesis", "reference"]
            if not any(sample.reference for sample in samples):
                head, rows = head[:2], [row[:2] for row in rows]
            parts.append(Table.of(head, rows, system).body())
        return parts


def training_curves(events: Sequence[Mapping[str, Any]]) -> PictureColumn:
    """The charts of a run: losses together, every other quantity in a chart of its own.

    `events` are the lines of metrics.jsonl: flat mappings with "update" (else "step", "tokens")
    and numbers; what is null or no number is left out.
    """
    axis = next((name for name in AXES if any(name in event for event in events)), AXES[0])
    rates = {name for event in events for name in event if name.endswith(RATE)}
    counters = {*COUNTERS, *(name.removesuffix(RATE) for name in rates)}
    curves: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        if axis not in event:
            continue
        for name, value in event.items():
            if name not in counters and _is_number(value):
                curves.setdefault(name, []).append((float(event[axis]), float(value)))
    charts: dict[str, list[Series]] = {}
    units: dict[str, str] = {}
    for name, points in curves.items():
        title, unit = _group(name)
        if title == "Speed":
            unit = f"{name.removesuffix(RATE)} a second"
        elif title == "Loss" and f"tokens{RATE}" in rates:
            unit = "nats a token"
        charts.setdefault(title, []).append(Series(name, tuple(_thinned(points))))
        units[title] = unit
    drawn = (Curves(tuple(some), title, axis, units[title]) for title, some in charts.items())
    return PictureColumn(tuple(drawn), "Training")


def _group(name: str) -> tuple[str, str]:
    for title, unit, belongs in GROUPS:
        if belongs(name):
            return title, unit
    return name, ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `MOST_POINTS` of them, evenly, with the last one."""
    step = -(-len(points) // MOST_POINTS)
    return points if step <= 1 else [*points[:-1:step], points[-1]]


def _figure(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return short(value) if abs(value) >= 1e4 else f"{value:.4g}"


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{_inert(heading)}</h2>{body}</section>" if body else ""


def _inert(text: Any) -> str:
    return escape(visible(str(text)))
