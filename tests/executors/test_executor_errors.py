"""A wrong `--on`: one error, before anything is printed or written."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import RegardError
from regard.sharded.mapping import map as compute

sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))

RECIPE = """
task = "language-modeling"
[data]
train = "train.txt"
valid = "train.txt"
[model]
name = "lstm-lm"
d_model = 4
[training]
max_steps = 1
"""
RATE = "training.optimizer.learning_rate=0.1,0.2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    from tiny_folders import folder

    made = tmp_path_factory.mktemp("on")
    folder(made / "model", "bert", "Model")
    (made / "train.txt").write_text("a b c\n" * 9)
    (made / "lm.toml").write_text(RECIPE)
    return made


def ray_module(version: str) -> ModuleType:
    """What is imported as Ray where no cluster is connected to."""
    made = ModuleType("ray")
    made.__version__, made.is_initialized = version, lambda: False  # type: ignore[attr-defined]
    return made


def nowhere() -> str:
    """An address where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"ray://127.0.0.1:{free.getsockname()[1]}"


CASES = {
    "no-ray": ("ray", None, r"pip install 'regard[ray]'"),
    "old-ray": ("ray", ray_module("2.9.3"), "Ray 2.9.3 is too old"),
    "wrong-address": (nowhere(), ray_module("2.60.0"), "nothing answers at ray://127.0.0.1:"),
    "no-address": ("ray://cluster", ray_module("2.60.0"), "must be like ray://HOST:10001"),
    "no-slurm": ("slurm://gpu", None, "Slurm was not found on this machine"),
    "local-address": ("local://here", None, "takes no address"),
    "no-executor": ("clouds", None, "There is no executor 'clouds'"),
}


@pytest.fixture(params=CASES)
def case(request, monkeypatch) -> tuple[str, str]:
    """A value of `--on` and its error."""
    on, ray, told = CASES[request.param]
    if request.param == "no-slurm":
        pytest.importorskip("submitit")
        monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return on, told


@pytest.mark.parametrize("command", ["sweep", "compare", "train", "embed", "predict", "map"])
def test_a_wrong_executor_is_the_only_thing_that_is_said_and_nothing_is_written(
    folder, tmp_path, monkeypatch, case, command
):
    (on, told), out = case, tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    if command == "map":
        with pytest.raises(RegardError) as refused:
            compute(folder / "model", ["a b"], "embed", out=out, on=on)
        said = str(refused.value)
    else:
        if command == "train" and not on.startswith("ray"):
            told = "`--on` of a training must be `ray`"
        words = {
            "sweep": [folder / "lm.toml", "--over", RATE],
            "compare": [folder / "lm.toml"],
            "train": [folder / "lm.toml"],
        }.get(command, [folder / "model", folder / "train.txt", "--workers", "1"])
        done = CliRunner().invoke(app, [command, *map(str, words), "--on", on, "--out", str(out)])
        said = done.stderr
        assert done.exit_code == 2 and done.stdout == "" and said.count("error:") == 1
        assert said.startswith("error: ")
    assert told in said
    assert not list(tmp_path.iterdir())
