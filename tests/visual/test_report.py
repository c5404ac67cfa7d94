"""The page of a run, and what a notebook shows of it."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest
from visual_pages import SAVAGE, Tree, addresses, embedded, scripts, widest

from regard.training.callbacks import Status, Step
from regard.visual import (
    Curves,
    HeadGrid,
    Heatmap,
    Panel,
    RunReport,
    Series,
    Table,
)
from regard.visual.picture import PictureColumn, PictureRow
from regard.visual.report import NotebookProgress, score_table, training_curves

EVENTS = [
    {
        "step": 10,
        "epoch": 0.1,
        "tokens": 900,
        "train/loss": 5.0,
        "lr": 1e-3,
        "tokens_per_s": 90.0,
    },
    {"step": 20, "epoch": 0.2, "tokens": 1800, "train/loss": 4.0, "lr": 2e-3, "grad_norm": None},
    {"step": 20, "valid/bleu": 12.5, "valid/loss": 4.5},
    {"step": 30, "epoch": 0.3, "tokens": 2700, "train/loss": float("nan"), "note": "x"},
]


def test_every_quantity_of_the_metrics_becomes_a_curve():
    charts = {chart.title: chart for chart in training_curves(EVENTS).parts}
    assert list(charts) == ["Loss", "Learning rate", "Speed", "valid/bleu"]
    loss = {series.name: series.finite for series in charts["Loss"].series}
    assert loss == {"train/loss": [(10, 5.0), (20, 4.0)], "valid/loss": [(20, 4.5)]}
    assert charts["Learning rate"].x_axis == "step"
    assert "nan" not in charts["Loss"].svg()


def test_long_curves_are_thinned_and_keep_their_end():
    events = [{"step": index, "train/loss": 1 / (1 + index)} for index in range(100_000)]
    (chart,) = training_curves(events).parts
    (series,) = chart.series
    assert len(series.points) <= 601 and series.points[-1][0] == 99_999
    assert training_curves([]).parts == ()


def test_points_agree_with_the_axes():
    chart = Curves((Series("a", ((0, 0.0), (10, 50.0), (20, 100.0))),), width=420, height=300)
    svg = chart.svg()
    dots = [
        (float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    ]
    (x0, y0), (x1, y1), (x2, y2) = dots
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.02) and y0 - y1 == pytest.approx(
        y1 - y2, abs=0.02
    )
    axis = r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>%s</text>'
    labelled = float(re.search(axis % "10", svg)[1])
    assert labelled == pytest.approx(x1, abs=0.02)
    grid = [
        float(y) for y, text in re.findall(r'y="([\d.]+)"[^>]*text-anchor="end"[^>]*>(\d+)<', svg)
    ]
    assert min(grid) == pytest.approx(y2, abs=0.02)


def test_tables_are_whole_where_stdout_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    cells = ["valid accuracy", "0.56 ± 0.01", "x" * 70]
    PictureColumn((Table.of(cells, [cells]),)).show()
    assert capsys.readouterr().out.splitlines()[:2] == ["  ".join(cells)] * 2


def test_tables_fit_the_terminal_and_are_escaped():
    table = Table.of(
        ["word", "n", "text"], [[word, "1.5", word * 20] for word in SAVAGE], SAVAGE[0]
    )
    assert widest(table.text(80)) <= 80 and widest(table.text(40)) <= 40
    page = table.html()
    assert scripts(page) == 0 and SAVAGE[0] in [one["text"] for one in Tree(page).elements]


def report() -> RunReport:
    heads = HeadGrid((Panel.of("cross", 1, [[[0.5, 0.5]]], ["a"], ["b", "<c>"]),))
    scores = {SAVAGE[0]: {"BLEU": 12.5, SAVAGE[0]: 1.0}, "other": {"BLEU": 3e7}}
    samples = Table.of(SAVAGE[:3], [SAVAGE[:3], SAVAGE[:1] * 3])
    pictures = [("Scores", score_table(scores)), ("Samples", samples)]
    pictures.append(("Training", PictureRow(training_curves(EVENTS).parts)))
    pictures += [("heads", heads), ("map", Heatmap.of([[1.0]], ["a"], ["b"])), ("more", heads)]
    return RunReport(SAVAGE[0], {SAVAGE[0]: SAVAGE[0]}, pictures)


def test_the_report_is_escaped_and_loads_nothing():
    page = report().html()
    elements = Tree(page).elements
    assert scripts(page) == 4  # two pictures of heads: data and program each
    assert len(embedded(page)) == 2
    assert addresses(page) == []
    assert not {"link", "img", "iframe", "object"} & {one["tag"] for one in elements}
    assert not [name for one in elements for name in one if name.startswith("on")]
    assert [one["text"] for one in elements].count(SAVAGE[0]) >= 7  # shown, as text


STATUS = Status(5, 1.0, 0.25, 100.0, 2.5, 1e-3, 60.0)


@pytest.fixture
def shown(monkeypatch) -> list[str]:
    """What the output has shown, one HTML text after the other."""
    found: list[str] = []
    output = SimpleNamespace(update=found.append)

    def display(html: str, display_id: bool) -> SimpleNamespace:
        found.append(html)
        return output

    module = SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=module))
    return found


def test_the_bar_and_the_curves_grow_in_one_output(shown):
    progress = NotebookProgress()
    progress.show(STATUS)
    assert 'value="0.2500"' in shown[-1] and "step 5" in shown[-1] and "<svg" not in shown[-1]
    for step in range(1, 4):
        progress.on_log(step, {"train/loss": 3.0 - step, "seconds": 1.0})
    progress.on_step(Step(3, 1.0, 1e-3, 1.0))
    progress.on_end(None)
    progress.close()
    assert 'value="1.0000"' in shown[-1] and shown[-1].count("<svg") >= 1
    assert "finished after step 3" in shown[-1] and "1:00 left" not in shown[-1]


def test_an_interrupted_training_shows_the_update_at_which_it_stopped(shown):
    progress = NotebookProgress()
    progress.show(STATUS)
    progress.on_step(Step(7, 1.0, 1e-3, 1.0))
    progress.close()
    assert "stopped at step 7" in shown[-1] and 'value="0.2500"' in shown[-1]
