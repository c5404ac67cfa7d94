"""The model that a training starts from belongs to the run, which keeps its files until it ends."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import every_task
import pytest
import torch

import regard
from regard.errors import ConfigError
from regard.training import Paused

OPTIONS = {
    "task": "classification",
    "model": "start",
    "train": "rows.tsv",
    "valid": "rows.tsv",
    "batch_size": 4,
    "max_steps": 6,
    "precision": "float32",
}


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    every_task.encoder("embedding").save(Path("start"))
    lines = [f"{line}\t{'cat' in line}" for line in every_task.lines(40)]
    Path("rows.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return tmp_path


def stopped(out: str) -> None:
    with pytest.raises(Paused):
        regard.train(out=out, stop_after_fraction=0.5, progress=False, **OPTIONS)


def change_heads() -> None:
    config = json.loads(Path("start/config.json").read_text())
    Path("start/config.json").write_text(json.dumps({**config, "num_attention_heads": 1}))


def test_a_run_is_resumed_exactly_where_its_start_model_is_gone(workdir):
    whole = regard.train(out="whole", progress=False, **OPTIONS)
    stopped("stopped")
    shutil.rmtree("start")
    resumed = regard.resume("stopped", progress=False)
    weights = "model/model.safetensors"
    assert (resumed.folder / weights).read_bytes() == (whole.folder / weights).read_bytes()
    assert not (resumed.folder / "start").exists()
    again = regard.resume("stopped", progress=False)
    assert again.result == resumed.result  # it is finished


def test_a_finished_run_that_is_resumed_for_longer_says_what_to_do(workdir):
    regard.train(out="whole", progress=False, **OPTIONS)
    recipe = Path("whole/recipe.toml")
    recipe.write_text(recipe.read_text().replace("max_steps = 6", "max_steps = 9"))
    told = r"training.max_steps: was 6, is 9\n.*start another run: with \[model\] path"
    with pytest.raises(ConfigError, match=told):
        regard.resume("whole", progress=False)


def test_a_run_is_not_resumed_where_its_start_model_has_changed(workdir):
    stopped("stopped")
    change_heads()
    with pytest.raises(ConfigError, match=r"start, has changed since:\s+config\.json"):
        regard.resume("stopped", progress=False)


@pytest.mark.parametrize("studied", ["compare", "cross_validate", "sweep", "new trial"])
def test_a_study_does_not_go_on_where_its_start_model_has_changed(workdir, studied):
    def study():
        options = OPTIONS | {"out": "study", "executor": "here", "progress": False}
        if studied == "compare":
            return regard.compare([OPTIONS], out="study", executor="here", progress=False)
        if studied == "cross_validate":
            del options["valid"]
            return regard.cross_validate(folds=2, **options)
        return regard.sweep(param_space={"learning_rate": [0.1, 0.01]}, **options)

    study()
    change_heads()
    if studied == "new trial":  # of a sweep that was stopped before it
        shutil.rmtree("study/trial-02-seed1")
        rows = Path("study/results.jsonl").read_text().splitlines()
        Path("study/results.jsonl").write_text(rows[0] + "\n")
    with pytest.raises(ConfigError, match=r"has changed since:\s+config\.json"):
        study()


def test_a_folder_that_holds_other_files_takes_no_run(workdir):
    Path("notes").mkdir()
    Path("notes/a.txt").write_text("a")
    with pytest.raises(ConfigError, match="notes holds other files, such as a.txt"):
        regard.train(out="notes", progress=False, **OPTIONS)
    assert [path.name for path in Path("notes").iterdir()] == ["a.txt"]


def test_a_folder_that_holds_a_model_takes_no_run(workdir):
    before = {path: path.stat().st_mtime_ns for path in Path("start").rglob("*")}
    with pytest.raises(ConfigError, match="start holds a model"):
        regard.train(out="start", progress=False, **OPTIONS)
    assert {path: path.stat().st_mtime_ns for path in Path("start").rglob("*")} == before


def test_a_folder_whose_name_is_not_utf8_takes_a_run(workdir):
    out = os.fsdecode(b"caf\xe9")
    with pytest.raises(Paused):
        regard.train(out=out, stop_after_fraction=0.5, progress=False, **OPTIONS)
    run = regard.resume(out, progress=False)
    assert regard.load(out).predict("a text") == run.model.predict("a text")
