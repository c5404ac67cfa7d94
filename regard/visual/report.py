"""Pages of runs and of comparisons, and the output of a training in a notebook."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from regard.file_writing import write_text
from regard.training.callbacks import Callback, Status, Step
from regard.visual.charts import Curves, Series, short
from regard.visual.drawing import visible
from regard.visual.picture import Picture, PictureColumn, Table, fragment, page, sections


def spread(scores: Sequence[float]) -> str:
    """mean ± standard deviation (of a sample), or the number alone; "" where there is none."""
    if len(scores) > 1:
        return f"{np.mean(scores):.4g} ± {np.std(scores, ddof=1):.2g}"
    return f"{scores[0]:.4g}" if scores else ""


def duration(seconds: float) -> str:
    """45 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.3g} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


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
    """A page of facts and pictures.

    facts: by name: model, data, parameters, time.  pictures: (heading, picture).
    links: name -> address of another page, relative to the folder of this one.
    """

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    pictures: Sequence[tuple[str, Picture]] = ()
    links: Mapping[str, str] = field(default_factory=dict)

    def html(self) -> str:
        """The whole page; every text in it is escaped."""
        facts = [(name, _escaped(value)) for name, value in self.facts.items()]
        if self.links:
            links = (
                f'<a href="{quote(address)}">{_escaped(name)}</a>'
                for name, address in self.links.items()
            )
            facts.append(("pages", ", ".join(links)))
        listed = "".join(f"<dt>{_escaped(name)}</dt><dd>{value}</dd>" for name, value in facts)
        head = f'<h1>{_escaped(self.title)}</h1><dl class="rg-facts">{listed}</dl>'
        parts = ((heading, picture.body()) for heading, picture in self.pictures)
        return page(self.title, head + sections(parts))

    def save(self, path: str | Path) -> Path:
        """Write the page atomically."""
        path = Path(path)
        write_text(path, self.html())
        return path


def score_table(scores: Mapping[str, Mapping[str, float]]) -> Table:
    """A row for each model, from its scores by their names."""
    names = list(dict.fromkeys(name for of_model in scores.values() for name in of_model))
    rows = [
        [model, *(_figure(of_model[name]) if name in of_model else "" for name in names)]
        for model, of_model in scores.items()
    ]
    return Table.of(["", *names], rows)


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


def _figure(value: float) -> str:
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
