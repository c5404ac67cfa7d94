"""A run that was killed while it wrote, has lost files, or whose data has moved, is completed."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import killed_at
from typer.testing import CliRunner

from regard.checkpoints.store import read_folder
from regard.cli import app
from regard.errors import CheckpointError, ConfigError, DataError
from regard.experiments import runs
from regard.experiments.compare import compare
from regard.experiments.results import Comparison
from regard.recipe import plain_name
from regard.training.callbacks import read_result
from regard.training.checkpointing import checked_checkpoint
from regard.training.metrics_log import TIMING, read_events

RECIPE = """
task = "translation"
name = "small"
[data]
train = ["data/train.a", "data/train.b"]
valid = ["data/valid.tsv"]
test = ["data/valid.tsv"]
max_tokens_per_batch = 64
[tokenizer]
kind = "words"
vocab_size = 50
[model]
name = "transformer"
d_model = 8
d_ff = 8
heads = 2
encoder_layers = 1
decoder_layers = 1
max_length = 12
dropout = 0.1
[training]
max_steps = 3
threads = 1
logging_steps = 1
[training.validation]
eval_steps = 2
[training.checkpoints]
save_steps = 1
save_seconds = 0
"""


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
    (workdir / "small.toml").write_text(RECIPE)
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
    with pytest.raises(CheckpointError, match="result.json: `regard resume` then writes"):
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
        outcomes = [Comparison.read(o).outcomes["small"][0] for o in (killed, out)]
        one, other = (replace(outcome, seconds=0.0, memory=None) for outcome in outcomes)
        assert one == other
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
    text = RECIPE.replace('name = "small"', f"name = {json.dumps(name)}")
    (tmp_path / "r.toml").write_text(text.replace("data/", f"{whole}/data/"))
    with pytest.raises(ConfigError, match=r"r\.toml:3: `name` must") as refused:
        runs.train("r.toml") if verb == "train" else compare(["r.toml"], progress=False)
    assert "plain name" in str(refused.value) or "255 bytes" in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["r.toml"]


def test_a_recipe_whose_file_name_is_no_folder_name_raises_an_error(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a\\b.toml").write_text(RECIPE.replace('name = "small"\n', ""))
    with pytest.raises(ConfigError, match="Or set `name` in it"):
        runs.train("a\\b.toml", progress=False)


def test_plain_name_returns_ordinary_names_unchanged():
    for name in ("", "small", "Große Läufe 2", ".hidden", "a.b", "a" * 255):
        assert plain_name(name) == name


# ---- moved data -------------------------------------------------------------------------------


@pytest.fixture
def stopped(whole, tmp_path) -> Path:
    """A run with its data beside it, one step from its end, and its data then moved away."""
    shutil.copytree(whole / "data", tmp_path / "old" / "data")
    (tmp_path / "old" / "small.toml").write_text(RECIPE)
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
