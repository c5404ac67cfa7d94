"""Several models side by side: a table, and quality against what it cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev

from regard.errors import ConfigError
from regard.visual.curves import Curves, Series, short
from regard.visual.picture import Note, Picture, PictureChoice, PictureColumn, PictureRow
from regard.visual.table import Table


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

    def __post_init__(self) -> None:
        if not self.scores:
            raise ConfigError(f"`scores` of {self.name!r} must hold a number a seed, but is empty.")


def compare_results(
    models: Sequence[ComparedModel],
    quality: str = "BLEU",
    better: str = "max",
    title: str = "",
    items: str = "tokens",
    *,
    validation: str = "",
) -> PictureColumn:
    """A table, quality while training, and quality against each cost, which a page lets choose.

    quality: the name of the score.  better: "max" or "min".  items: what the task counts.
    validation: the name of the score of the curves, if it is another one. The table shows
    the standard deviation over seeds, the curves their range.

    Raises:
        ConfigError: `better` is something else.
    """
    if better not in ("max", "min"):
        raise ConfigError(f'`better` must be "max" or "min", but is {better!r}.')
    parts: list[Picture] = [_table(models, quality, better, title, items)]
    if max(len(one.scores) for one in models) > 1:
        seeds = "± is the standard deviation over seeds; the band is the range over seeds."
        parts.append(Note((seeds,)))
    charts: list[Picture] = []
    if any(one.curves for one in models):
        series = tuple(_mean_curve(one) for one in models)
        charts.append(Curves(series, f"{validation or quality} while training", items, ""))
    known = [each for each in COSTS if any(each[2](one) is not None for one in models)]
    against = tuple(
        _against(models, quality, f"{quality} and {name}", unit.format(items), cost)
        for name, unit, cost in known
    )
    if against:
        names = tuple(name for name, _, _ in known)
        charts.append(PictureChoice(against, f"{quality} and costs", names, "horizontal axis"))
    return PictureColumn((*parts, PictureRow(tuple(charts))) if charts else tuple(parts), title)


Cost = Callable[[ComparedModel], float | None]
COSTS: tuple[tuple[str, str, Cost], ...] = (
    ("parameters", "parameters", lambda one: one.parameters),
    ("training FLOPs", "FLOPs", lambda one: one.flops),
    ("speed", "{} a second", lambda one: one.tokens_per_second),
    ("memory", "peak bytes", lambda one: one.memory),
    ("time", "seconds", lambda one: one.seconds),
)


def _table(
    models: Sequence[ComparedModel], quality: str, better: str, title: str, items: str
) -> Table:
    extra = list(dict.fromkeys(name for one in models for name in one.notes))
    head = ["model", quality, "parameters", f"{items}/s", "FLOPs", "memory", "time", *extra]
    rows = [
        [
            one.name,
            spread(one.scores),
            _shown(one.parameters),
            _shown(one.tokens_per_second),
            _shown(one.flops),
            "" if one.memory is None else short(one.memory) + "B",
            "" if one.seconds is None else duration(one.seconds),
            *(one.notes.get(name, "") for name in extra),
        ]
        for one in models
    ]
    shown = [column for column in range(len(head)) if any(row[column] for row in rows)]
    pick = max if better == "max" else min
    best = pick(range(len(rows)), key=lambda index: mean(models[index].scores))
    name, *cells = (tuple(row[column] for column in shown) for row in (head, *rows))
    return Table(name, tuple(cells), title, best)


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


def _mean_curve(one: ComparedModel) -> Series:
    """The mean over seeds and their range, point by point, as far as all of them go."""
    points, ranges = [], []
    for together in zip(*one.curves, strict=False):
        ys = [y for _, y in together if math.isfinite(y)]
        if ys:
            points.append((together[0][0], mean(ys)))
            ranges.append((min(ys), max(ys)))
    several = len(one.curves) > 1
    return Series(one.name, tuple(points), tuple(ranges) if several else ())


def _against(
    models: Sequence[ComparedModel], quality: str, title: str, unit: str, cost: Cost
) -> Curves:
    """Quality against a cost: a point for each run."""
    series = []
    for one in models:
        value = cost(one)
        points = () if value is None else tuple((float(value), score) for score in one.scores)
        series.append(Series(one.name, points, joined=False))
    return Curves(tuple(series), title, unit, quality)
