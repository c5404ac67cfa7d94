"""`regard.find_lr` and `regard find-lr`: a suggestion for a recipe, and nothing else changes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import ConfigError
from regard.experiments import runs
from regard.experiments.find_lr import FoundRate, find_lr, find_lr_of_recipe
from regard.recipe import parse, read
from regard.training.range_test import RangeTest
from regard.training.schedules import noam

ROWS = [(f"{text} {n}", text) for n in range(8) for text in ("good", "bad")]
RECIPE = """
task = "classification"
[data]
train = "rows.tsv"
valid = 0.25
batch_size = 4
[tokenizer]
kind = "wordpiece"
vocab_size = 60
[model]
name = "bert"
d_model = 8
d_ff = 8
heads = 2
layers = 1
[training]
epochs = 3
threads = 1
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in ROWS))
    Path("small.toml").write_text(RECIPE)


def files() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def test_find_lr_suggests_a_rate_and_leaves_all_files_unchanged():
    before = files()
    found = find_lr("small.toml", progress=False)
    assert found.test.rates[0] == pytest.approx(1e-7) and len(found.test.rates) <= 100
    assert 1e-6 < found.suggestion < 10
    assert found.suggestion <= found.minimum / 10 * 1.06  # two digits
    assert files() == before


def test_the_printed_lines_are_those_of_a_recipe():
    found = find_lr("small.toml", progress=False)
    tables = parse(str(found)).tables
    assert tables == {"training": {"optimizer": {"learning_rate": found.suggestion}}}
    run = runs.train_recipe(
        read("small.toml", [f"training.optimizer.learning_rate={found.suggestion}"])
    )
    assert run.scores


def test_the_rate_of_the_recipe_and_its_schedule_have_no_effect():
    one = find_lr("small.toml", num_steps=25, progress=False)
    others = ["training.optimizer.learning_rate=5.0", "training.schedule.name=cosine"]
    other = find_lr_of_recipe(read("small.toml", others), num_steps=25, progress=False)
    assert one == other


def test_the_suggestion_for_noam_is_the_factor_of_its_formula():
    change = ["training.schedule={name='noam', warmup=10, d_model=8}"]
    one = find_lr("small.toml", progress=False)
    other = find_lr_of_recipe(read("small.toml", change), progress=False)
    assert other.test == one.test
    peak = max(noam(step, 8, 10) for step in range(1, 100))
    assert other.suggestion == float(f"{one.test.suggestion / peak:.2g}")


def test_data_in_memory_give_the_suggestion_of_their_file():
    found = find_lr("small.toml", num_steps=25, progress=False)
    of_rows = find_lr("small.toml", train=ROWS, num_steps=25, progress=False)
    assert of_rows == found and not Path("runs").exists()


def test_the_chart_and_the_numbers_are_written_into_the_folder():
    found = find_lr("small.toml", out="chart", progress=False)
    assert sorted(os.listdir("chart")) == ["find-lr.html", "find-lr.json"]
    assert json.loads(Path("chart/find-lr.json").read_text()) == found.facts()
    page = Path("chart/find-lr.html").read_text()
    assert "suggestion" in page and "learning rate" in page
    assert "<svg" in found._repr_html_()


@pytest.mark.parametrize("count", [0, 1, 30])
def test_a_test_without_a_suggestion_can_be_shown(count, tmp_path):
    rates = tuple(10.0 ** (-n / 10) for n in range(count, 0, -1))
    found = FoundRate(RangeTest(rates, (1.0,) * count, 30, True))
    assert found.suggestion is None and "the loss did not fall" in str(found)
    assert found.save(tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(num_steps=5), "`num_steps` must be at least 20"),
        (dict(start_lr=1.0, end_lr=0.1), "`start_lr` and `end_lr`"),
        (dict(out=3), "`out` must be the path of a folder"),
        (dict(progress="loud"), "`progress` must be"),
        (dict(epoch=3), "no section has an option `epoch`"),
    ],
)
def test_errors_name_the_option(options, said):
    with pytest.raises(ConfigError, match=said):
        find_lr("small.toml", **options)


def test_the_command_prints_the_lines_and_draws_the_chart():
    command = [
        "find-lr",
        "small.toml",
        "training.gradient_accumulation_steps=2",
        "--start",
        "1e-6",
        "-q",
    ]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    assert "learning_rate" in parse(ran.stdout).tables["training"]["optimizer"]
    assert "runs/small-find-lr/find-lr.html" in ran.stderr
    assert Path("runs/small-find-lr/find-lr.html").exists()
    as_json = CliRunner().invoke(app, [*command, "--json", "--out", "x"])
    assert json.loads(as_json.stdout)["learning_rate"] > 0
    wrong = CliRunner().invoke(app, ["find-lr", "small.toml", "--epochs", "3"])
    assert wrong.exit_code == 2 and "training.epochs=3" in wrong.stderr
