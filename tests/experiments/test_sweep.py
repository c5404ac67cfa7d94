"""Sweeps: what is drawn, what is promoted, what is spent; stopping, failing, refusing."""

from __future__ import annotations

import json
import math
import threading
from concurrent.futures import Future
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import numpy as np
import pandas
import pytest
from recipe_files import written
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import ConfigError, RegardError
from regard.executors import Job, Json
from regard.executors.local import HereExecutor
from regard.experiments import runs, study
from regard.experiments.recipe_options import read_recipe
from regard.experiments.results import StudyResults
from regard.experiments.study import RunOptions
from regard.experiments.sweep import (
    LogUniform,
    Space,
    SweepPlan,
    Uniform,
    ValueList,
    axis_of,
    sweep,
    sweep_file,
)
from regard.file_writing import locked
from regard.recipe import read
from regard.schema import toml_value
from regard.training.interrupt import Interrupted

RECIPE = dict(
    task="language-modeling",
    data=dict(
        batch_size=4, sequence_length=5, train="train.txt", valid="valid.txt", test="valid.txt"
    ),
    model=dict(name="lstm-lm", d_model=4),
    training=dict(
        tokens=320,
        threads=1,
        logging_steps=1000,
        optimizer=dict(learning_rate=0.01),
        schedule=dict(name="cosine"),
        validation=dict(eval_steps=5),
    ),
)
RATE = "training.optimizer.learning_rate"
OVER = {RATE: [0.003, 0.03], "model.dropout": "0.0,0.5"}
GRID, QUIET = ("grid", None, 2, 1), RunOptions(executor="here", progress=False)
HERE: dict = {"executor": "here", "progress": False}  # runs in this process
HALVING = {"strategy": "successive-halving", "num_rungs": 1, "seeds": (1, 2), **HERE}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("sweep")
    draw = Random(0)
    for part, lines in (("train", 60), ("valid", 12)):
        words = (" ".join(draw.choices("abcdefgh", k=6)) for _ in range(lines))
        (made / f"{part}.txt").write_text("".join(f"{line}\n" for line in words))
    written(made / "lm.toml", RECIPE)
    return made


@pytest.fixture(scope="module")
def halved(folder) -> StudyResults:
    return sweep(folder / "lm.toml", param_space=OVER, out=folder / "halved", **HALVING)


# -------------------------------------------------------------------------------- what is searched


@pytest.mark.parametrize(
    ("text", "real", "found"),
    [
        ("128,256", False, ValueList((128, 256))),
        ("adam, sgd", False, ValueList(("adam", "sgd"))),
        ("true,false", False, ValueList((True, False))),
        ("[0, 2],[0, 1]", False, ValueList(([0, 2], [0, 1]))),
        ("1e-4..1e-2", True, LogUniform(1e-4, 1e-2)),
        ("0..1", True, Uniform(0, 1)),
        ("0.1..0.5", True, Uniform(0.1, 0.5)),
        ("-2..5", False, Uniform(-2, 5, whole=True)),
        ("1e-4..1e-2:3", True, ValueList((1e-4, 1e-3, 1e-2))),
        ("1..2:3", True, ValueList((1.0, 1.5, 2.0))),
        ("1..4:3", False, ValueList((1, 2, 4))),
        ("1.5..3.5", False, Uniform(2, 3, whole=True)),
        ("1,1", False, ValueList((1,))),
    ],
)
def test_a_text_is_a_list_or_a_range(text, real, found):
    assert axis_of("x", text, real) == found


@pytest.mark.parametrize("given", ["2..1", [], 3, LogUniform(0, 1), Uniform(2, 1)])
def test_a_malformed_list_or_range_of_values_raises_an_error(given):
    with pytest.raises(ConfigError, match="must be a range from a lower to a higher"):
        axis_of("x", given, True)
    with pytest.raises(ConfigError, match="a recipe cannot hold"):
        axis_of("x", [{1, 2}], False)


@pytest.mark.parametrize(
    ("name", "given", "known"),
    [
        ("model.d_model", [np.int64(4), np.int32(8)], [4, 8]),
        (RATE, np.logspace(-3, -1, 3), [0.001, 0.01, 0.1]),
        ("training.optimizer.betas", "[0.9, 0.98],[0.9, 0.999]", [(0.9, 0.98), (0.9, 0.999)]),
        ("name", ['é "😀"'], ['é "😀"']),
        (
            "training.optimizer",
            '{name="adamw"},{name="adam",learning_rate=0.1}',
            ["adamw", "adam"],
        ),
    ],
)
def test_values_of_every_kind_arrive_in_the_recipes_of_the_trials(folder, name, given, known):
    axis = axis_of(name, given, name == RATE)
    found = []
    for value in axis.values:
        text = f"{name}={toml_value(json.loads(json.dumps(value)))}"
        one: Any = read_recipe(folder / "lm.toml", [text])
        for part in name.split("."):
            one = getattr(one, part)
        found.append(one.name if name == "training.optimizer" else one)
    assert found == known


@pytest.mark.parametrize(
    ("axis", "below"),
    [  # the share of values that are at most `x`
        (LogUniform(1e-4, 1e-2), lambda x: math.log(x / 1e-4) / math.log(100)),
        (Uniform(0.0, 0.8), lambda x: x / 0.8),
        (Uniform(3, 12, whole=True), lambda x: (x - 2) / 10),
    ],
)
def test_values_are_drawn_evenly_on_the_scale_of_a_range(axis, below):
    """The largest distance of both distributions, by Kolmogorov's bound at one in a million."""
    count = 400
    drawn = sorted(one["x"] for one in Space({"x": axis}).drawn(count, 1))
    assert all(axis.min <= one <= axis.max for one in drawn)
    assert not axis.whole or all(isinstance(one, int) for one in drawn)
    apart = max(abs((drawn.index(x) + drawn.count(x)) / count - below(x)) for x in set(drawn))
    assert apart < math.sqrt(math.log(2e6) / (2 * count))


def test_draws_depend_on_the_seed_alone_and_a_list_is_drawn_without_repetition():
    space = Space({"a": ValueList((1, 2, 3)), "b": ValueList((1, 2, 3))})
    assert space.drawn(5, 1) == space.drawn(5, 1) != space.drawn(5, 2)
    assert len({tuple(one.values()) for one in space.drawn(8, 1)}) == 8
    assert space.drawn(9, 1) == space.drawn(100, 2) == space.grid()
    assert [(one["a"], one["b"]) for one in space.grid()] == [
        (a, b) for a in (1, 2, 3) for b in (1, 2, 3)
    ]
    ranges = Space({"a": LogUniform(1e-4, 1e-2)})
    assert ranges.drawn(8, 3)[:5] == ranges.drawn(5, 3)


# ------------------------------------------------------------------------------ successive halving


@pytest.mark.parametrize(
    ("count", "rungs", "stages"),
    [
        (16, 2, [(0.125, 16), (0.25, 8), (1.0, 4)]),
        (11, 1, [(0.25, 11), (1.0, 6)]),
    ],
)
def test_halving_has_the_stages_of_its_definition(count, rungs, stages):
    space = Space({"x": ValueList(tuple(range(count)))})
    plan = SweepPlan("successive-halving", count, rungs, 1, space)
    assert plan.stages() == stages


class Scored(HereExecutor):
    """Trains nothing: a score for each trial and rung, some of which fail."""

    def __init__(self, scores: dict[str, dict[float, float | None]]):
        self.scores = scores

    def submit(self, job: Job) -> Future[Json]:
        future: Future[Json] = Future()
        score = self.scores[job.name.removesuffix("-seed1")][job.arguments["until"]]
        future.set_result({"score": score, "goal": ["loss", "min"], "steps": 1, "tokens": 1})
        return future


def test_halving_promotes_the_better_half_of_those_that_have_not_failed(
    folder, tmp_path, monkeypatch
):
    draw, rungs = Random(2), (0.125, 0.25, 1.0)
    scores = {
        f"trial-{n:02}": {u: draw.random() if draw.random() < 0.8 else None for u in rungs}
        for n in range(1, 12)
    }
    monkeypatch.setattr(study, "make_executor", lambda *given: Scored(scores))
    given = {"strategy": "successive-halving", "trials": 11, "progress": False}
    space = {"learning_rate": LogUniform(1e-4, 1e-2)}
    found = sweep(folder / "lm.toml", param_space=space, out=tmp_path, **given)
    alive = [*scores]
    reached = {trial.name: trial.until for trial in found.trials}
    for until in rungs:
        assert {name for name in scores if reached[name] >= until} == {*alive}
        left = {name: scores[name][until] for name in alive if scores[name][until] is not None}
        alive = sorted(left, key=left.get)[: (len(left) + 1) // 2]
    assert found.best.name == alive[0]
    failed = {trial.name for trial in found.trials if trial.error}
    assert failed == {name for name in scores if scores[name][reached[name]] is None} and failed


def test_a_promoted_run_equals_one_that_was_never_stopped(halved, folder, tmp_path):
    assert [float(one.until) for one in halved.trials] == [1, 1, 0.25, 0.25]
    assert f"4 trials, the best {halved.best.name}, valid loss " in repr(halved)
    best = halved.best
    given = [f"{name}={value}" for name, value in best.values.items()]
    given.append(f'tokenizer={{path="{halved.folder / "tokenizer"}"}}')
    whole = runs.train_recipe(
        read(folder / "lm.toml", [*given, "seed=1"]), out=tmp_path / "run", progress=False
    ).folder
    for file in ("model/model.safetensors", "recipe.toml"):
        assert (halved.run / file).read_bytes() == (whole / file).read_bytes()
    curve = best.outcomes[0].validation_curve()
    assert best.scores["valid loss"][0] == min(score for _, score in curve) and len(curve) >= 3


def test_results_have_the_spread_over_seeds_and_what_was_spent(halved):
    facts = json.loads((halved.folder / "results.json").read_text())
    first = facts["trials"][0]
    assert facts["best"] == first["trial"] and facts["better"] == "min"
    assert first["values"] == halved.best.values and facts["run"] == str(halved.run)
    for name in ("valid loss", "test perplexity"):
        scores = first["scores"][name]
        assert len(scores["runs"]) == 2 and scores["mean"] == pytest.approx(mean(scores["runs"]))
    budget = 2 * (4 / 4 + 2 * 3 / 4) * 320  # with two seeds, up to whole steps
    assert budget <= facts["tokens"] <= budget + 20 * 2 * 4
    page = (halved.folder / "report.html").read_text()
    for told in ("±", "trial-01", "learning_rate", "successive-halving"):
        assert told in page
    assert {"trained to", RATE, "valid loss", "parameters"} <= {*halved.table().head}


class Stopping(HereExecutor):
    """Is interrupted after so many jobs."""

    def __init__(self, jobs: int):
        self.left = jobs

    def submit(self, job: Job) -> Future[Json]:
        if not self.left:
            raise Interrupted("stopped", 130)
        self.left -= 1
        return super().submit(job)


def test_a_stopped_sweep_goes_on_and_ends_with_the_same_results(halved, folder, monkeypatch):
    out = folder / "stopped"

    def again() -> StudyResults:
        return sweep(folder / "lm.toml", param_space=OVER, out=out, **HALVING)

    for jobs in (3, 6):
        with monkeypatch.context() as patched:
            patched.setattr(study, "make_executor", lambda *given, n=jobs: Stopping(n))
            with pytest.raises(Interrupted, match="The same command continues"):
                again()
    found, whole = again().facts(), halved.facts()
    for one in (found, whole):  # times and memory differ
        for trial in (*one["trials"], *one["runs"]):
            for name in ("speed", "seconds", "memory", "outcome"):
                trial.pop(name, None)
        del one["run"]
    assert found == whole
    with pytest.raises(ConfigError, match=r"was started with other settings:\n  draw_seed: was 1"):
        sweep(folder / "lm.toml", param_space=OVER, draw_seed=2, out=out, **HALVING)


def test_trials_near_good_ones_are_suggested_and_the_table_has_the_columns_of_scikit_learn(
    folder, tmp_path
):
    space = {"learning_rate": LogUniform(1e-3, 1e-1)}
    options: dict[str, Any] = {"strategy": "tpe", "trials": 3, "tokens": 80, **HERE}
    found = sweep(folder / "lm.toml", param_space=space, out=tmp_path / "tpe", **options)
    again = sweep(folder / "lm.toml", param_space=space, out=tmp_path / "again", **options)
    assert [one.values for one in found.trials] == [one.values for one in again.trials]
    assert len({one.values[RATE] for one in found.trials}) == 3
    table = pandas.DataFrame(found.cv_results)
    assert list(table["rank_valid_loss"]) == [1, 2, 3]
    assert list(table[f"param_{RATE}"]) == [one.values[RATE] for one in found.trials]
    assert list(table["mean_valid_loss"]) == list(table["split0_valid_loss"])
    rows = [json.loads(line) for line in (tmp_path / "tpe/results.jsonl").open()]
    assert {row["run"] for row in rows} == {f"trial-0{n}-seed1" for n in (1, 2, 3)}


# ------------------------------------------------------------------------------- failing, refusing


def test_a_trial_that_fails_is_reported_and_the_others_go_on(folder, capsys):
    over = {RATE: [0.01, 1e38]}
    sgd, shown = ["training.optimizer.name=sgd"], RunOptions(executor="here", progress=True)
    found = sweep_file(folder / "lm.toml", sgd, over, GRID, shown, folder / "failing")
    assert found.best.values == {RATE: 0.01}
    assert "inf" in found.trials[1].error or "nan" in found.trials[1].error
    assert found.facts()["trials"][1]["error"] and "failed" in str(found)
    assert "trial-02-seed1 has failed: " in capsys.readouterr().err
    with pytest.raises(RegardError, match="every trial has failed"):
        sweep_file(folder / "lm.toml", sgd, {RATE: [1e38]}, GRID, QUIET, folder / "all")


def test_a_job_waits_until_another_process_has_left_its_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study, "POLL_INTERVAL", 0.01)
    waiting = threading.Thread(target=study._wait_for_other_process, args=[tmp_path])
    with locked(tmp_path, "training in"):
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
    waiting.join(10)
    assert not waiting.is_alive()
    assert "another process is training in" in capsys.readouterr().err
    study._wait_for_other_process(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("over", "told"),
    [
        ({"model.d_modl": [4]}, "has no `d_modl`. Did you mean 'd_model'?"),
        ({"learning_rat": [0.1]}, "no section has an option `learning_rat`"),
        (
            {"model.d_model": [4, 0]},
            "trial-02 (model.d_model=0): command line: `model.d_model` must",
        ),
        ({"model.d_model": "4,a"}, "trial-02"),
        ({RATE: [0.1, -1]}, "`training.optimizer.learning_rate` must be"),
        ({"training.tokens": [320, 640]}, "budget.tokens: 320 in the recipe, 640 in trial-02"),
        ({"seed": [1, 2]}, "see `seeds`"),
        ({"learning_rate": Uniform(0.1, 1.0)}, "a grid needs values"),
        ({}, "must name options"),
    ],
)
def test_wrong_options_and_values_are_found_before_anything_runs(folder, tmp_path, over, told):
    with pytest.raises(ConfigError) as refused:
        sweep(folder / "lm.toml", param_space=over, out=tmp_path / "out", progress=False)
    assert told in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_the_command_line_says_the_plan_before_it_starts_and_prints_json(folder, tmp_path):
    over = ["--param-space", f"{RATE}=1e-3..1e-1", "--param-space", "model.dropout=0..1"]
    more = ["--strategy", "successive-halving", "--trials", "3", "--num-rungs", "1", "--json"]
    more += ["--executor", "here"]
    command = ["sweep", str(folder / "lm.toml"), *over, *more, "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert len(facts["trials"]) == 3 and Path(facts["run"]).is_dir()
    assert all(0.001 <= one["values"][RATE] <= 0.1 for one in facts["trials"])
    for told in (
        f"{RATE}: 0.001 to 0.1 on a logarithmic scale",
        "model.dropout: 0 to 1 on a linear scale",
        "trials that are trained to 1/4 of the budget: 3, 80 tokens each",
        "trials that are trained to the end: 2, 320 tokens each",
    ):
        assert told in done.stderr
    wrong = CliRunner().invoke(
        app, ["sweep", str(folder / "lm.toml"), "--param-space", "model.d_model"]
    )
    assert wrong.exit_code == 2 and "must be of the form" in wrong.stderr
