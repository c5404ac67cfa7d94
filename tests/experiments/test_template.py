"""Recipes that `regard init` writes: complete, valid, and true to the defaults."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import every_task
import pytest
from every_task import OF_ENCODER_DECODERS as ENCODER_DECODERS
from test_cli import done, refused

from regard.errors import ConfigError
from regard.experiments.recipe_options import checked_recipe
from regard.experiments.template import recipe_template, trained_tasks
from regard.recipe import parse
from regard.tasks import TASKS

ROOT = Path(__file__).parents[2]
LANGUAGE_MODELS = (
    "language-modeling",
    "hybrid-language-modeling",
    "permutation-language-modeling",
    "bidirectional-language-modeling",
    "masked-language-modeling",
    "replaced-tokens",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder with an encoder."""
    folder = tmp_path_factory.mktemp("model") / "bert"
    every_task.runs.save(every_task.encoder("fill-mask"), folder)
    return folder


def overrides(task: str, model: Path) -> list[str]:
    with_new_weights = (*ENCODER_DECODERS, *LANGUAGE_MODELS, "captioning")
    return [] if task in with_new_weights else [f"model.path={model}"]


@pytest.mark.parametrize("task", trained_tasks())
def test_the_comments_hold_the_defaults(tmp_path, model, task):
    text = recipe_template(task)
    assert max(map(len, text.splitlines())) < 121
    assert all(len(line) <= 100 for line in text.splitlines() if not is_option(line))
    optional = re.sub(r"^# \[[a-z_.]+\]\n.*?(?=^\[|\Z)", "", text, flags=re.M | re.S)
    filled = re.sub(r"^# (\w+ = (?! ).+)$", r"\1", optional, flags=re.M)
    assert filled.count("\n# ") < optional.count("\n# ") - 20
    set_one, set_all = (parse(one, overrides(task, model)) for one in (text, filled))
    assert checked_recipe(set_one).model_dump() == checked_recipe(set_all).model_dump()


def is_option(line: str) -> bool:
    return bool(re.match(r"(# )?(\[|\w+ = )", line))


@pytest.mark.parametrize("task", trained_tasks())
def test_every_option_has_a_comment_of_whole_sentences(task):
    block: list[str] = []
    for line in recipe_template(task).splitlines()[3:]:
        if not line:
            block = []
        elif not is_option(line):
            block.append(line.removeprefix("# "))
        elif re.match(r"(# )?\w+ = ", line):
            comment = " ".join(block)
            assert re.match(r"[A-Z0-9\"(]|sacreBLEU", comment), line
            assert comment.endswith((".", ".)")), (line, comment)
            assert not re.match(r"(Of|For|None)\b", comment), (line, comment)
            block = []


def test_tasks_that_are_not_trained_or_not_known_are_an_error():
    for task in sorted(TASKS.keys() - {*trained_tasks()}):
        with pytest.raises(ConfigError, match="must be one of embedding, translation"):
            recipe_template(task)
    with pytest.raises(ConfigError, match="classification"):
        recipe_template("clasification")


def test_the_command_writes_a_file_and_replaces_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done("init", "tagging")
    assert Path("tagging.toml").read_text() == recipe_template("tagging")
    assert "--force" in refused("init", "tagging")
    done("init", "tagging", "other.toml")
    assert "Did you mean 'tagging'?" in refused("init", "taging")


@pytest.mark.slow("pyproject.toml", "recipes", "examples/tatoeba", "regard/serving/page")
def test_the_wheel_holds_the_recipes_the_demo_s_data_and_the_page_of_the_web_ui(tmp_path):
    """What is installed lists them: a wheel is built, unpacked and asked."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("regard", "recipes", "examples"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps"]
    subprocess.run([*command, "-w", "out", "."], cwd=tmp_path, check=True)
    (wheel,) = (tmp_path / "out").glob("*.whl")
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    shutil.unpack_archive(wheel, installed, "zip")
    page = Path("regard/serving/page")
    for file in (ROOT / page).rglob("*.*"):
        assert (installed / file.relative_to(ROOT)).read_bytes() == file.read_bytes()
    elsewhere.mkdir()

    def printed(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "regard", *words, "--json"],
            cwd=elsewhere, env={**os.environ, "PYTHONPATH": str(installed)}, check=True,
            capture_output=True, text=True,
        ).stdout  # fmt: skip

    rows = json.loads(printed("list", "recipes"))
    found = {row["name"]: Path(row["file"]) for row in rows}
    assert set(found) == {path.stem for path in (ROOT / "recipes").iterdir()}
    assert all(path.is_relative_to(installed) for path in found.values())
    estimated = printed("train", "demo-lstm", "--dry-run")
    assert "trained on the data" in estimated  # those of the demo are in the wheel, too
    assert (installed / "regard/examples/tatoeba/README.md").exists()  # with their licence
