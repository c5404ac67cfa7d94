"""A run that was killed while it wrote, has lost files, or whose data has moved, is completed."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import every_task
import pytest
import torch
from killing import killed_at
from recipe_files import written
from typer.testing import CliRunner

import regard
from regard.checkpoints.store import read_folder
from regard.cli import app
from regard.errors import CheckpointError, ConfigError, DataError
from regard.experiments import runs
from regard.experiments.compare import compare
from regard.training.callbacks import read_result
from regard.training.checkpointing import checked_checkpoint
from regard.training.interrupt import Paused
from regard.training.metrics_log import TIMING, read_events

RECIPE = dict(
    task="translation", name="small",
    data=dict(
        train=["data/train.a", "data/train.b"], valid=["data/valid.tsv"], test=["data/valid.tsv"],
        max_tokens_per_batch=64,
    ),
    tokenizer=dict(kind="words", vocab_size=50),
    model=dict(
        name="transformer", d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1,
        max_length=12, dropout=0.1,
    ),
    training=dict(
        max_steps=3, threads=1, logging_steps=1,
        validation=dict(eval_steps=2),
        checkpoints=dict(save_steps=1, save_seconds=0),
    ),
)  # fmt: skip


def write_data(folder: Path) -> None:
    draw = random.Random(1)
    lines = [" ".join(draw.choices("one two three four".split(), k=3)) for _ in range(24)]
    folder.mkdir()
    (folder / "train.a").write_text("\n".join(lines) + "\n")
    (folder / "train.b").write_text("\n".join(lines).upper() + "\n")
    (folder / "valid.tsv").write_text("".join(f"{one}\t{one.upper()}\n" for one in lines[:4]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A folder with data, a recipe, and `run`, a run that was never interrupted."""
    workdir = tmp_path_factory.mktemp("whole")
    write_data(workdir / "data")
    written(workdir / "small.toml", RECIPE)
    torch.set_num_threads(1)
    runs.train(workdir / "small.toml", out=workdir / "run", progress=False)
    return workdir


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(whole / "run", tmp_path / "run"))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def told(page: bytes) -> str:
    """A report without its times."""
    text = re.sub(r"<dd>[\d,]+ s in steps", "", page.decode())
    return text.split("<svg")[0] + "".join(re.findall(r"<table.*?</table>", text, re.DOTALL))


def outcome(folder: Path) -> dict[str, Any]:
    """Everything of a run that does not depend on time."""
    files = files_of(folder)
    events, result = read_events(folder), vars(read_result(folder)).copy()
    for timed in [*events, result]:
        for key in TIMING:
            timed.pop(key, None)
    return {
        "names": sorted(files),
        "model": {name: data for name, data in files.items() if name.startswith("model/")},
        "recipe": files["recipe.toml"],
        "page": told(files["report.html"]),
        "events": events,
        "result": result,
    }


# ---- killed -----------------------------------------------------------------------------------


def go_on(recipe: Path, folder: Path) -> None:
    if (folder / "recipe.toml").exists():
        runs.resume(folder, progress=False)
    else:
        runs.train(recipe, out=folder, progress=False)


def writes_of(work: Callable[[], Any]) -> int:
    """The number of writes that `work` makes."""
    read, write = os.pipe()

    def counted() -> None:
        import killing

        begun: list[Any] = []
        whole = killing.Deadly.event
        killing.Deadly.event = lambda self: bool(begun.append(self)) or whole(self)
        work()
        os.write(write, str(len(begun)).encode())

    assert not killed_at(10**9, counted)
    os.close(write)
    with os.fdopen(read) as pipe:
        return int(pipe.read())


def test_a_run_killed_at_any_write_is_completed_by_resume(whole, tmp_path):
    """The last write and some drawn ones; each resumed run is killed once more."""
    recipe, draw = whole / "small.toml", random.Random(os.getpid())
    work = lambda: go_on(recipe, tmp_path / "count")  # noqa: E731
    count = writes_of(work)
    assert count > 50
    for last in [*draw.sample(range(1, count - 3), 2), count - draw.randint(0, 2)]:
        folder = tmp_path / f"killed{last}"
        assert killed_at(last, lambda folder=folder: go_on(recipe, folder))
        killed_at(draw.randint(1, 40), lambda folder=folder: go_on(recipe, folder))
        go_on(recipe, folder)
        assert outcome(folder) == outcome(whole / "run"), f"killed at write {last}"


@pytest.mark.parametrize(
    "lost",
    [
        ["report.html"],
        ["result.json"],
        ["result.json", "report.html", "model"],
    ],
    ids="+".join,
)
def test_resume_writes_only_the_missing_files_of_a_finished_run(whole, copy, lost):
    before = files_of(copy)
    for name in lost:
        shutil.rmtree(copy / name) if (copy / name).is_dir() else (copy / name).unlink()
    left = {name: (copy / name).stat().st_mtime_ns for name in files_of(copy)}
    result = runs.resume(copy, progress=False).result
    assert result.step == 3
    assert outcome(copy) == outcome(whole / "run")
    if "result.json" not in lost:
        after = files_of(copy)
        assert {name: after[name] for name in left} == {name: before[name] for name in left}
        untouched = {n: t for n, t in left.items() if not n.startswith(("model/", "metrics"))}
        assert untouched == {name: (copy / name).stat().st_mtime_ns for name in untouched}


def test_resuming_a_finished_run_without_its_model_says_what_to_do(copy):
    shutil.rmtree(copy / "model")
    with pytest.raises(CheckpointError, match="has no model/. Remove"):
        runs.resume(copy, progress=False)


def test_a_comparison_killed_at_any_write_is_completed(whole, tmp_path):
    def run(out: Path) -> None:
        compare([whole / "small.toml"], out=out, executor="here", progress=False)

    draw, out = random.Random(os.getpid()), tmp_path / "whole"
    count = writes_of(lambda: run(out))
    for last in [draw.randint(1, count - 12), count - draw.randint(0, 9)]:
        killed = tmp_path / f"killed{last}"
        assert killed_at(last, lambda killed=killed: run(killed))
        run(killed)
        texts = ((folder / "comparison.json").read_text() for folder in (killed, out))
        one, other = (json.loads(text)["runs"][0]["outcome"] for text in texts)
        assert one | {"seconds": 0, "memory": 0} == other | {"seconds": 0, "memory": 0}
        assert files_of(killed).keys() == files_of(out).keys()
        got, wanted = (outcome(o / "small-seed1") for o in (killed, out))
        for changed in (got, wanted):
            del changed["recipe"]  # it names the tokenizer of the comparison by its path
        assert got == wanted


# ---- damaged records --------------------------------------------------------------------------


def damaged(value: Any, draw: random.Random) -> Any:
    """The value with one field missing or of another type."""
    changed = json.loads(json.dumps(value))
    at, key = changed, draw.choice(list(changed))
    while isinstance(at[key], dict) and at[key] and draw.random() < 0.7:
        at, key = at[key], draw.choice(list(at[key]))
    if draw.random() < 0.3:
        del at[key]
    else:
        at[key] = draw.choice([None, "x", [], {}, True, -1.5, [1], {"a": 1}, 2**63])
    return changed


def read_newest(folder: Path) -> None:
    newest = max((folder / "checkpoints").iterdir())
    checked_checkpoint(newest, *read_folder(newest))


READERS = {
    "result.json": read_result,
    "metrics.jsonl": read_events,
    "manifest.json": read_newest,
    "facts.json": read_newest,
}


@pytest.mark.parametrize("name", READERS)
def test_damaged_records_raise_errors_that_name_the_file(copy, name):
    newest = max((copy / "checkpoints").iterdir())
    path = copy / name if (copy / name).exists() else newest / name
    draw, whole = random.Random(name), path.read_text()
    first, _, rest = whole.partition("\n") if name == "metrics.jsonl" else (whole, "", "")
    refused = 0
    for _ in range(40):
        texts = [
            json.dumps(damaged(json.loads(first), draw)) + "\n" + rest,
            whole[: draw.randrange(len(whole))],
            whole[: len(whole) // 2] + "\xff\0" + whole[len(whole) // 2 :],
            "[" * 10_000 + "\n",
        ]
        path.write_bytes(draw.choice(texts).encode("latin1"))
        try:
            READERS[name](copy)
        except CheckpointError as error:
            refused += 1
            assert name in str(error)
    assert refused > 20


# ---- names ------------------------------------------------------------------------------------

EVIL = ["../evil", "a/b", "..", ".", "/abs", "a\\b", "a\0b", "a\nb", "a" * 256, "é" * 128]


@pytest.mark.parametrize("name", EVIL)
@pytest.mark.parametrize("verb", ["train", "compare"])
def test_a_name_outside_of_the_folder_of_runs_raises_an_error(
    whole, tmp_path, monkeypatch, name, verb
):
    monkeypatch.chdir(tmp_path)
    files = dict(train=[f"{whole}/data/train.{side}" for side in "ab"], test=None)
    data = dict(files, valid=[f"{whole}/data/valid.tsv"])
    written(tmp_path / "r.toml", RECIPE, dict(name=name, data=data))
    with pytest.raises(ConfigError, match=r"r\.toml:2: `name` must") as refused:
        runs.train("r.toml") if verb == "train" else compare(["r.toml"], progress=False)
    assert "plain, short name" in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["r.toml"]


# ---- moved data -------------------------------------------------------------------------------


@pytest.fixture
def stopped(whole, tmp_path) -> Path:
    """A run with its data beside it, one step from its end, and its data then moved away."""
    shutil.copytree(whole / "data", tmp_path / "old" / "data")
    written(tmp_path / "old" / "small.toml", RECIPE)
    folder = runs.train(tmp_path / "old/small.toml", out=tmp_path / "run", progress=False).folder
    (folder / "result.json").unlink()
    (folder / "report.html").unlink()
    shutil.rmtree(max((folder / "checkpoints").iterdir()))
    return folder


def paths_in(folder: Path) -> list[str]:
    return [
        f"data.train=['{folder}/train.a', '{folder}/train.b']",
        f"data.valid=['{folder}/valid.tsv']",
        f"data.test=['{folder}/valid.tsv']",
    ]


def test_a_run_resumes_with_data_at_other_paths(whole, stopped):
    new = stopped.parent / "new"
    (stopped.parent / "old/data").rename(new)
    with pytest.raises(DataError, match=r"train\.b.*regard resume .* data\.train=NEW"):
        runs.resume(stopped, progress=False)
    with pytest.raises(ConfigError, match="max_tokens_per_batch"):
        changed = [*paths_in(new), "data.max_tokens_per_batch=32"]
        runs.resume(stopped, changed, progress=False)
    done = CliRunner().invoke(app, ["resume", str(stopped), *paths_in(new)])
    assert done.exit_code == 0, done.output
    weights = "model/model.safetensors"
    assert (stopped / weights).read_bytes() == (whole / "run" / weights).read_bytes()
    assert (stopped / "report.html").exists()
    assert "old/data/train.a" in (stopped / "recipe.toml").read_text()  # the record stays


def test_a_run_does_not_resume_with_other_data(stopped):
    new = stopped.parent / "new"
    (stopped.parent / "old/data").rename(new)
    (new / "train.a").write_text((new / "train.a").read_text().upper())
    with pytest.raises(ConfigError, match=r"train\.a"):
        runs.resume(stopped, paths_in(new), progress=False)


# ---- start model

OPTIONS = {
    "task": "classification",
    "model": "start",
    "train": "rows.tsv",
    "header": True,
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


def stop_halfway(out: str) -> None:
    with pytest.raises(Paused):
        regard.train(out=out, stop_after_fraction=0.5, progress=False, **OPTIONS)


def change_heads() -> None:
    config = json.loads(Path("start/config.json").read_text())
    Path("start/config.json").write_text(json.dumps({**config, "num_attention_heads": 1}))


def test_a_run_is_resumed_exactly_where_its_start_model_is_gone(workdir):
    whole = regard.train(out="whole", progress=False, **OPTIONS)
    stop_halfway("stopped")
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
    stop_halfway("stopped")
    change_heads()
    with pytest.raises(ConfigError, match=r"has changed since:\s+config\.json"):
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


@pytest.mark.parametrize(
    "start",
    [
        regard.train,
        lambda **options: regard.cross_validate(**options | {"valid": None}),
        lambda **options: regard.sweep(param_space={"learning_rate": [0.1, 0.2]}, **options),
    ],
)
def test_a_folder_that_holds_a_model_takes_no_run(workdir, start):
    before = {path: path.stat().st_mtime_ns for path in Path("start").rglob("*")}
    with pytest.raises(ConfigError, match="start holds a model"):
        start(out="start", progress=False, **OPTIONS)
    assert {path: path.stat().st_mtime_ns for path in Path("start").rglob("*")} == before
