"""Where a training computes: `device` of train, resume, find-lr and cross_validate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import regard
from regard.errors import ConfigError

RECIPE = """
task = "classification"
[data]
train = "rows.tsv"
valid = 0.25
batch_size = 4
[tokenizer]
kind = "wordpiece"
[model]
name = "bert"
d_model = 8
d_ff = 8
heads = 2
layers = 1
[training]
max_steps = 2
threads = 1
"""
WRONG = ["cuda:99", "gpu", "meta", ""]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{text} {n}\t{text}\n" for n in range(8) for text in ("good", "bad")]
    Path("rows.tsv").write_text("".join(rows))
    Path("small.toml").write_text(RECIPE)


VERBS = {
    "train": lambda device: regard.train("small.toml", device=device, progress=False),
    "cross_validate": lambda device: regard.cross_validate(
        "small.toml", folds=2, device=device, progress=False
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_device_that_is_named_computes(monkeypatch, verb):
    """The default, a GPU on machines that have one, is then not asked for."""

    def default():
        raise AssertionError("the default")

    monkeypatch.setattr("regard.tasks.folders.device", default)
    with pytest.raises(AssertionError, match="the default"):
        VERBS[verb](None)
    VERBS[verb]("cpu")


@pytest.mark.parametrize("device", WRONG)
@pytest.mark.parametrize("verb", VERBS)
def test_a_device_that_is_not_here_is_an_error_and_nothing_is_written(verb, device):
    with pytest.raises(ConfigError, match=f"There is no device '{device}' here"):
        VERBS[verb](device)
    assert not Path("runs").exists()


def test_the_device_is_no_part_of_a_run():
    run = regard.train("small.toml", device="cpu", out="a", progress=False)
    assert "device =" not in (run.folder / "recipe.toml").read_text()
    other = regard.train("small.toml", out="b", progress=False)
    one, two = (Path(f"{name}/model/model.safetensors").read_bytes() for name in "ab")
    assert other.scores == run.scores
    if not torch.cuda.is_available():
        assert one == two
    assert regard.resume("a", device="cpu", progress=False).result == run.result
