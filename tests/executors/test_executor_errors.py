"""A wrong `--executor`: one error, before anything is printed or written."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from regard.cli import app

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


def without_a_cluster() -> ModuleType:
    """What is imported as Ray where no cluster answers."""

    def init(address: str, **options: object) -> None:
        raise ConnectionError(f"nothing answers at {address}\nand so on")

    made: Any = ModuleType("ray")
    made.__version__, made.is_initialized, made.init = "2.60.0", lambda: False, init
    made.shutdown = lambda: None
    return made


CASES = {
    "no-ray": (("ray",), None, r"pip install 'regard[ray]'"),
    "no-cluster": (
        ("ray", "--ray-address", "HOST:10001"),
        without_a_cluster(),
        "cannot connect to a Ray cluster (ray://HOST:10001): nothing answers at ray://HOST:10001",
    ),
    "no-slurm": (("slurm", "--partition", "gpu"), None, "Slurm was not found on this machine"),
    "local-partition": (
        ("local", "--partition", "gpu"),
        None,
        "`partition` is an option of the executor slurm",
    ),
    "no-executor": (("clouds",), None, "There is no executor 'clouds'"),
}


@pytest.fixture(params=CASES)
def case(request, monkeypatch) -> tuple[tuple[str, ...], str]:
    """The words after `--executor` and the error."""
    chosen, ray, told = CASES[request.param]
    if request.param == "no-slurm":
        pytest.importorskip("submitit")
        monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return chosen, told


@pytest.mark.parametrize("command", ["sweep", "compare", "embed"])
def test_a_wrong_executor_is_the_only_thing_that_is_said_and_nothing_is_written(
    folder, tmp_path, monkeypatch, case, command
):
    (chosen, told), out = case, tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    words = {
        "sweep": [folder / "lm.toml", "--param-space", RATE],
        "compare": [folder / "lm.toml"],
    }.get(command, [folder / "model", folder / "train.txt", "--workers", "1"])
    words = [*words, "--executor", *chosen, "--out", out]
    done = CliRunner().invoke(app, [command, *map(str, words)])
    assert done.exit_code == 2 and done.stdout == "" and done.stderr.count("error:") == 1
    assert done.stderr.startswith("error: ") and told in done.stderr
    assert not list(tmp_path.iterdir())
