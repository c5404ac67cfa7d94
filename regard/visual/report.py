"""Pages of runs and of comparisons, and the output of a training in a notebook."""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path, PurePosixPath
from statistics import mean, stdev
from typing import Any

from regard.file_writing import write_text
from regard.training.callbacks import Callback, Status, Step
from regard.visual.charts import Curves, Series, short
from regard.visual.drawing import visible
from regard.visual.picture import (
    Note,
    Picture,
    PictureColumn,
    PictureRow,
    Table,
    fragment,
    page,
    sections,
)


@dataclass(frozen=True)
class ComparedModel:
    """One model of a comparison: what it reached, once a seed, and what it cost.

    scores: of each seed, on the same test data.  curves: for each seed the points (items seen,
    validation score).  tokens_per_second: in training, of what the task counts.  flops: of the
    training.  memory: peak bytes.  seconds: of one training.  What was not measured is None, and
    empty in the table.
    """

    name: str
    scores: tuple[float, ...]
    curves: tuple[tuple[tuple[float, float], ...], ...] = ()
    parameters: int | None = None
    tokens_per_second: float | None = None
    flops: float | None = None
    memory: float | None = None
    seconds: float | None = None
    notes: dict[str, str] = field(default_factory=dict)  # further columns, by their names


def compare_results(
    models: Sequence[ComparedModel],
    quality: str = "BLEU",
    better: str = "max",
    items: str = "tokens",
    *,
    validation: str = "",
) -> PictureColumn:
    """A table, quality while training, and quality against each cost.

    quality: the name of the score.  better: "max" or "min"; "": the scores are not ranked.
    items: what the task counts.
    validation: the name of the score of the curves, if it is another one. The table shows
    the standard deviation over seeds, the curves their range.
    """
    parts: list[Picture] = [_table(models, quality, better, items)]
    several = max(len(model.scores) for model in models) > 1
    if several:
        parts.append(Note(("± is the standard deviation over seeds.",)))
    charts: list[Picture] = []
    if any(model.curves for model in models):
        series = tuple(_mean_curve(model) for model in models)
        band = "band: the range over seeds" if several else ""
        charts.append(Curves(series, f"{validation or quality} while training", items, band))
    costs = [each for each in COSTS if any(each[2](model) is not None for model in models)]
    against = tuple(
        _against(models, quality, f"{quality} and {name}", unit.format(items), cost)
        for name, unit, cost in costs
    )
    charts += against
    return PictureColumn((*parts, PictureRow(tuple(charts))) if charts else tuple(parts))


Cost = Callable[[ComparedModel], float | None]
COSTS: tuple[tuple[str, str, Cost], ...] = (
    ("parameters", "parameters", lambda model: model.parameters),
    ("training FLOPs", "FLOPs", lambda model: model.flops),
    ("speed", "{} a second", lambda model: model.tokens_per_second),
    ("memory", "peak bytes", lambda model: model.memory),
    ("time", "seconds", lambda model: model.seconds),
)


def _table(models: Sequence[ComparedModel], quality: str, better: str, items: str) -> Table:
    extra = list(dict.fromkeys(name for model in models for name in model.notes))
    head = ["model", quality, "parameters", f"{items}/s", "FLOPs", "memory", "time", *extra]
    rows = [
        [
            model.name,
            spread(model.scores),
            _shown(model.parameters),
            _shown(model.tokens_per_second),
            _shown(model.flops),
            "" if model.memory is None else short(model.memory) + "B",
            "" if model.seconds is None else duration(model.seconds),
            *(model.notes.get(name, "") for name in extra),
        ]
        for model in models
    ]
    shown = [column for column in range(len(head)) if any(row[column] for row in rows)]
    pick = max if better == "max" else min
    means = [mean(model.scores) for model in models]
    best = means.index(pick(means)) if better else None
    name, *cells = (tuple(row[column] for column in shown) for row in (head, *rows))
    return Table(name, tuple(cells), "", best)


def spread(scores: Sequence[float]) -> str:
    """mean ± standard deviation (of a sample), or the number alone."""
    if len(scores) == 1:
        return f"{scores[0]:.2f}"
    return f"{mean(scores):.2f} ± {stdev(scores):.2f}"


def duration(seconds: float) -> str:
    """45 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.3g} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _shown(value: float | None) -> str:
    return "" if value is None else short(value)


def _mean_curve(model: ComparedModel) -> Series:
    """The mean over seeds and their range, point by point, as far as all of them go."""
    points, ranges = [], []
    for together in zip(*model.curves, strict=False):
        ys = [y for _, y in together if math.isfinite(y)]
        if ys:
            points.append((together[0][0], mean(ys)))
            ranges.append((min(ys), max(ys)))
    several = len(model.curves) > 1
    return Series(model.name, tuple(points), tuple(ranges) if several else ())


def _against(
    models: Sequence[ComparedModel], quality: str, title: str, unit: str, cost: Cost
) -> Curves:
    """Quality against a cost: a point for each run."""
    series = []
    for model in models:
        value = cost(model)
        points = () if value is None else tuple((float(value), score) for score in model.scores)
        series.append(Series(model.name, points, joined=False))
    return Curves(tuple(series), title, unit, quality)


RATE = "_per_s"  # at the end of a name of metrics.jsonl, after what the task counts

# The titles of charts, and which names of metrics.jsonl they show; other names have their own.
GROUPS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("Loss", lambda name: "loss" in name),
    ("Perplexity", lambda name: "perplexity" in name),
    ("Learning rate", lambda name: name == "lr"),
    ("Speed", lambda name: name.endswith(RATE)),
    ("Gradient norm", lambda name: "norm" in name),
)
COUNTERS = ("step", "tokens", "epoch", "seconds", "seed")  # are no curves
MAX_POINTS = 600  # of a curve: more cannot be distinguished


@dataclass(frozen=True)
class RunReport:
    """What `report.html` shows: curves, scores, samples and pictures.

    facts: by name: model, data, parameters, time.  scores: the final scores of each model.
    events: the lines of metrics.jsonl; each number but counters becomes a curve.
    samples: of each model: its input, its output and, where there is one, the reference.
    pictures: (heading, picture).  links: name -> address of another page, relative to the folder of
    this one.
    """

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    events: Sequence[Mapping[str, Any]] = ()
    samples: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
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
            columns = 3 if any(any(sample[2:]) for sample in samples) else 2
            head = ["source", "hypothesis", "reference"][:columns]
            parts.append(Table.of(head, [sample[:columns] for sample in samples], model).body())
        return parts


def training_curves(events: Sequence[Mapping[str, Any]]) -> PictureColumn:
    """The charts of a run: losses together, every other quantity in a chart of its own.

    events: the lines of metrics.jsonl, with "step" and numbers; other values are left out.
    """
    rates = {name for event in events for name in event if name.endswith(RATE)}
    counters = {*COUNTERS, *(name.removesuffix(RATE) for name in rates)}
    curves: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        for name, value in event.items():
            measured_once = name.startswith("test/")
            if name not in counters and not measured_once and type(value) in (int, float):
                curves.setdefault(name, []).append((float(event["step"]), float(value)))
    charts: dict[str, list[Series]] = {}
    units: dict[str, str] = {}
    for name, points in curves.items():
        title = next((title for title, belongs in GROUPS if belongs(name)), name)
        if title == "Speed":
            units[title] = f"{name.removesuffix(RATE)} a second"
        elif title == "Loss" and f"tokens{RATE}" in rates:
            units[title] = "nats a token"
        charts.setdefault(title, []).append(Series(name, tuple(_thinned(points))))
    drawn = (Curves(tuple(s), title, "step", units.get(title, "")) for title, s in charts.items())
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


CURVES_EVERY = 2.0  # seconds between two drawings of the curves


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, whose output may be HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookProgress(Callback):
    """A `Progress` and a `Callback` with one output, which is replaced as the training runs.

    every: seconds between two calls of `show`.
    """

    every = 0.5

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html = HTML
        self._events: list[dict[str, Any]] = []
        self._messages: list[str] = []
        self._status, self._curves = "starting", ""
        self._fraction, self._step, self._finished = 0.0, 0, False
        self._curves_at, self._shown_at = 0.0, time.monotonic()  # times of the last drawing
        self._output = display(HTML(self.html()), display_id=True)

    def html(self) -> str:
        """The HTML that is shown now."""
        messages = "".join(f"<div>{escape(message)}</div>" for message in self._messages[-3:])
        bar = f'<progress max="1" value="{self._fraction:.4f}" aria-label="training"></progress>'
        return fragment(f"<div>{bar} {escape(self._status)}</div>{messages}{self._curves}")

    # ---- progress

    def show(self, status: Status) -> None:
        self._fraction, self._status = status.fraction, str(status)
        self._refresh()

    def say(self, message: str) -> None:
        """See `Progress`; messages within `every` seconds are shown together."""
        self._messages.append(message)
        if time.monotonic() - self._shown_at > self.every:
            self._refresh()

    def warn(self, message: str) -> None:
        self._messages.append(f"Warning: {message}")
        self._refresh()

    def close(self) -> None:
        how = "finished after" if self._finished else "stopped at"
        self._status = f"{how} step {self._step:,}" if self._step else how.split()[0]
        self._draw_curves()
        self._refresh()

    # ---- callbacks

    def on_step(self, step: Step) -> None:
        self._step = step.number

    def on_log(self, step: int, values: Mapping[str, Any]) -> None:
        self._events.append({"step": step, **values})
        if time.monotonic() - self._curves_at > CURVES_EVERY:
            self._draw_curves()

    def on_end(self, result: object) -> None:
        self._fraction, self._finished = 1.0, True

    def _draw_curves(self) -> None:
        charts = training_curves(self._events).body() if self._events else ""
        self._curves = f'<div class="rg-charts">{charts}</div>'
        self._curves_at = time.monotonic()

    def _refresh(self) -> None:
        self._output.update(self._html(self.html()))
        self._shown_at = time.monotonic()
