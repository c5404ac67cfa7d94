"""A run as one file that opens without network: curves, scores, samples, pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any

from regard.file_writing import write_text
from regard.visual.curves import Curves, Series, short
from regard.visual.drawing import visible
from regard.visual.page import page, sections
from regard.visual.picture import Picture, PictureColumn, PictureRow
from regard.visual.table import Table

RATE = "_per_s"  # at the end of a name of metrics.jsonl, after what the task counts

# The titles of charts, and which names of metrics.jsonl they show; other names have their own.
GROUPS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("Loss", lambda name: "loss" in name or "cross_entropy" in name),
    ("Perplexity", lambda name: "perplexity" in name or name.endswith("ppl")),
    ("Learning rate", lambda name: name in ("lr", "learning_rate", "rate")),
    ("Speed", lambda name: name.endswith(RATE)),
    ("Gradient norm", lambda name: "norm" in name),
    ("Model FLOPs utilization", lambda name: name == "mfu"),
)
COUNTERS = ("step", "tokens", "epoch", "seconds", "seed")  # are no curves
AXES = ("step", "tokens")  # the first of these that there is
MAX_POINTS = 600  # of a curve: more cannot be distinguished


@dataclass(frozen=True)
class ReportSample:
    """An input, the output of the model, and the reference."""

    source: str
    hypothesis: str
    reference: str = ""


@dataclass(frozen=True)
class RunReport:
    """What `report.html` shows: curves, scores, samples and pictures.

    facts: by name: model, data, parameters, time.  scores: the final scores of each model.
    events: the lines of metrics.jsonl; each number but counters becomes a curve.
    samples: of each model.  pictures: (heading, picture).  links: name -> address of another page,
    relative to the folder of this one.
    """

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    events: Sequence[Mapping[str, Any]] = ()
    samples: Mapping[str, Sequence[ReportSample]] = field(default_factory=dict)
    pictures: Sequence[tuple[str, Picture]] = ()
    comparison: Picture | None = None
    links: Mapping[str, str] = field(default_factory=dict)

    def html(self) -> str:
        """The whole page; every text in it is escaped."""
        parts = (
            ("Comparison", self.comparison.body() if self.comparison else ""),
            ("Scores", self._scores()),
            ("Training", self._curves()),
            ("Samples", "".join(self._samples())),
            *((heading, picture.body()) for heading, picture in self.pictures),
        )
        return page(self.title, self._head() + sections(parts))

    def save(self, path: str | Path) -> Path:
        """Write the page atomically."""
        path = Path(path)
        write_text(path, self.html())
        return path

    def _head(self) -> str:
        facts = "".join(
            f"<dt>{_escaped(name)}</dt><dd>{_escaped(value)}</dd>"
            for name, value in self.facts.items()
        )
        if self.links:
            links = (
                f'<a href="{escape(_quoted(address))}">{_escaped(name)}</a>'
                for name, address in self.links.items()
            )
            facts += f"<dt>pages</dt><dd>{', '.join(links)}</dd>"
        listed = f'<dl class="rg-facts">{facts}</dl>' if facts else ""
        return f"<h1>{_escaped(self.title)}</h1>{listed}"

    def _scores(self) -> str:
        names = list(dict.fromkeys(name for scores in self.scores.values() for name in scores))
        rows = [
            [model, *(_figure(scores.get(name, "")) for name in names)]
            for model, scores in self.scores.items()
        ]
        return Table.of(["", *names], rows).body() if rows else ""

    def _curves(self) -> str:
        charts = training_curves(self.events)
        return PictureRow(tuple(charts.parts)).body() if charts.parts else ""

    def _samples(self) -> list[str]:
        parts = []
        for model, samples in self.samples.items():
            columns = 3 if any(sample.reference for sample in samples) else 2
            rows = [
                [sample.source, sample.hypothesis, sample.reference][:columns] for sample in samples
            ]
            head = ["source", "hypothesis", "reference"][:columns]
            parts.append(Table.of(head, rows, model).body())
        return parts


def training_curves(events: Sequence[Mapping[str, Any]]) -> PictureColumn:
    """The charts of a run: losses together, every other quantity in a chart of its own.

    events: the lines of metrics.jsonl, with "step" (else "tokens") and numbers; other
    values are left out.
    """
    axis = next((name for name in AXES if any(name in event for event in events)), AXES[0])
    rates = {name for event in events for name in event if name.endswith(RATE)}
    counters = {*COUNTERS, *(name.removesuffix(RATE) for name in rates)}
    curves: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        if axis not in event:
            continue
        for name, value in event.items():
            measured_once = name.startswith("test/")
            if name not in counters and not measured_once and type(value) in (int, float):
                curves.setdefault(name, []).append((float(event[axis]), float(value)))
    charts: dict[str, list[Series]] = {}
    units: dict[str, str] = {}
    for name, points in curves.items():
        title = next((title for title, belongs in GROUPS if belongs(name)), name)
        if title == "Speed":
            units[title] = f"{name.removesuffix(RATE)} a second"
        elif title == "Loss" and f"tokens{RATE}" in rates:
            units[title] = "nats a token"
        charts.setdefault(title, []).append(Series(name, tuple(_thinned(points))))
    drawn = (Curves(tuple(s), title, axis, units.get(title, "")) for title, s in charts.items())
    return PictureColumn(tuple(drawn), "Training")


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `MAX_POINTS` of them, evenly spaced, and the last one."""
    step = -(-len(points) // MAX_POINTS)
    return points if step <= 1 else [*points[:-1:step], points[-1]]


def _quoted(address: str) -> str:
    """A relative path as the address of a link."""
    return PurePosixPath("/", address).as_uri().removeprefix("file:///")


def _figure(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return short(value) if abs(value) >= 1e4 else f"{value:.4g}"


def _escaped(text: Any) -> str:
    return escape(visible(str(text)))
