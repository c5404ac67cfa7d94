"""Two processes give what one gives, save what one resumes, and resume what one has saved."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from ranks_program import COMPRESSIVE, RECIPE, Exact, chosen, stopped
from recipe_files import written
from toy import averaged

import regard
from regard.checkpoints.store import read_folder, read_tensors
from regard.data.batches import IGNORE, PairBatch, Sequences, StreamBatch
from regard.data.encoder_inputs import GroupBatch, InputBatch
from regard.data.lm_streams import BidirectionalBatch
from regard.data.pretraining import MaskedBatch
from regard.errors import CheckpointError
from regard.tasks.permutation_language_modeling import PermutationBatch
from regard.training.metrics_log import read_events
from regard.training.run import resume, train

PROGRAM = Path(__file__).with_name("ranks_program.py")
CLOCK = ("seconds", "tokens_per_s", "examples_per_s")
WORDS = "the old cat sat on a warm mat and was sleeping in the sun".split()


def write_rows(folder: Path) -> None:
    """13 examples: of the four batches of an epoch, the last has one row."""
    rows = [" ".join(WORDS[i : i + 2 + i % 4]) + f"\t{'ab'[i % 3 == 0]}" for i in range(13)]
    (folder / "train.tsv").write_text("\n".join(rows) + "\n")
    (folder / "valid.tsv").write_text("\n".join(rows[:5]) + "\n")
    written(folder / "recipe.toml", RECIPE)
    written(folder / "compressive.toml", COMPRESSIVE)


def environment() -> dict[str, str]:
    """That of each process."""
    paths = [str(Path(regard.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    found = os.pathsep.join(filter(None, paths))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": found}


def torchrun(what: str, folder: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, "--standalone", str(PROGRAM), what, str(folder)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder in which two processes have trained what `ranks_program` says."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.set_num_threads(1)
    stopped(folder / "resumed")  # by one process
    write_rows(folder)
    done = torchrun("main", folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A training in this process, of the same kind as that of two."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    train(Exact(), chosen(), folder, progress=False)
    return folder


def assert_equal_runs(found: Path, expected: Path, tolerance: float) -> None:
    """Every line of metrics.jsonl, the result and the published weights, but for the clock."""
    events, wanted = read_events(found), read_events(expected)
    assert len(events) == len(wanted)
    for one, other in zip(events, wanted, strict=True):
        assert one.keys() - set(CLOCK) == other.keys() - set(CLOCK)
        for name in one.keys() - {*CLOCK, "average"}:
            assert math.isclose(one[name], other[name], rel_tol=tolerance), (name, one, other)
    one, other = (json.loads((run / "result.json").read_text()) for run in (found, expected))
    for name in ("reason", "weights", "step", "tokens", "best_step"):
        assert one[name] == other[name]
    mine, theirs = (read_tensors(run / "model" / "model.safetensors") for run in (found, expected))
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.shape == theirs[name].shape
        assert torch.allclose(tensor, theirs[name], rtol=tolerance, atol=tolerance), name


@pytest.mark.slow("regard/training", "regard/data", "regard/models")
def test_two_processes_give_the_curve_and_the_weights_of_one(runs, alone):
    """In float64, with a carried state, accumulation, clipping and the mean of checkpoints."""
    assert_equal_runs(runs / "several", alone, 1e-10)


@pytest.mark.slow("regard/training", "regard/data", "regard/models")
def test_the_mean_of_weights_is_that_of_one_process(runs, tmp_path):
    train(Exact(), averaged(), tmp_path / "run", progress=False)
    assert_equal_runs(runs / "averaged", tmp_path / "run", 1e-7)  # a rate of 5 multiplies rounding


@pytest.mark.slow("regard/training", "regard/data", "regard/models")
def test_one_process_resumes_what_two_have_saved(runs, alone, tmp_path):
    run = shutil.copytree(runs / "stopped", tmp_path / "run")
    assert (max((run / "checkpoints").iterdir()) / "index.json").exists()
    resume(Exact(), chosen(), run, progress=False)
    assert_equal_runs(run, alone, 1e-10)


@pytest.mark.slow("regard/training", "regard/data", "regard/models")
def test_two_processes_resume_what_one_has_saved(runs, alone):
    assert_equal_runs(runs / "resumed", alone, 1e-10)


@pytest.mark.slow("regard/training", "regard/data", "regard/models")
def test_a_process_that_dies_ends_the_run_and_little_is_lost(alone, tmp_path):
    done = torchrun("dying", tmp_path)
    assert done.returncode != 0
    assert time.monotonic() - float((tmp_path / "killed at").read_text()) < 30
    run = tmp_path / "killed"
    assert max((run / "checkpoints").iterdir()).name == "step-000020"
    resume(Exact(), chosen(), run, progress=False)
    assert_equal_runs(run, alone, 1e-10)


@pytest.mark.slow("regard/training", "regard/data", "regard/models")
def test_a_program_connects_again_after_an_error_that_it_has_caught(tmp_path):
    done = torchrun("twice", tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"0 0": "1", "0 1": "1", "1 0": "11", "1 1": "11", "end 0": "", "end 1": ""}


@pytest.mark.slow("regard/training", "regard/data", "regard/models")
def test_gradients_in_layers_are_those_of_the_whole_model(runs):
    """Of every kind of layer: parameters are read where they are gathered."""
    names = (runs / "models.txt").read_text().splitlines()
    assert len(names) >= 15
    assert {"stream gpt2", "translator transformer", "translator t5", "stream xlnet"} <= {*names}


@pytest.mark.slow("regard/training", "regard/data", "regard/models")
def test_a_recipe_is_trained_with_batches_of_fewer_rows_than_processes(runs, tmp_path, monkeypatch):
    """In float32, with layers of their own; the folder is that of one process."""
    write_rows(tmp_path)
    monkeypatch.chdir(tmp_path)
    regard.train("recipe.toml", out="recipe", progress=False)
    assert_equal_runs(runs / "recipe", tmp_path / "recipe", 2e-4)
    files = [
        {str(file.relative_to(run)) for file in run.rglob("*") if "checkpoints" not in file.parts}
        for run in (runs / "recipe", tmp_path / "recipe")
    ]
    assert files[0] == files[1]
    first, second = (regard.load(run / "recipe") for run in (runs, tmp_path))
    assert first.predict("the old cat") == second.predict("the old cat")


@pytest.mark.slow("regard/training", "regard/data", "regard/models")
def test_a_loss_that_reads_the_weights_of_layers_is_that_of_one_process(
    runs, tmp_path, monkeypatch
):
    """Compressions learn from the attention of all layers, after these have run."""
    write_rows(tmp_path)
    monkeypatch.chdir(tmp_path)
    regard.train("compressive.toml", out="compressive", progress=False)
    assert_equal_runs(runs / "compressive", tmp_path / "compressive", 2e-4)
    events = read_events(tmp_path / "compressive")
    assert any(event.get("train/reconstruction", 0) > 0 for event in events)


@pytest.mark.slow("regard/training", "regard/data", "regard/models")
def test_a_checkpoint_without_a_file_of_a_process_is_not_read(runs, tmp_path):
    step = max((runs / "stopped" / "checkpoints").iterdir())
    copy = shutil.copytree(step, tmp_path / "step")
    whole, _ = read_folder(copy)
    assert whole["weights"]["embedding.weight"].shape == (13, 8)
    (copy / "weights-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="weights-00002-of-00002"):
        read_folder(copy)


def batches():
    """A batch of three rows of every kind."""
    texts = Sequences.of([[1, 2, 3], [4], [5, 6]], 0)
    grid = torch.arange(9).view(3, 3)
    six = Sequences.of([[1, 2], [3], [4, 5, 6], [7], [8], [9, 1]], 0)
    return [
        texts,
        PairBatch(texts, texts),
        StreamBatch(grid, grid, fresh=True),
        InputBatch(texts, torch.tensor([7, 8, 9])),
        GroupBatch(six, torch.tensor([1, 3, 2]), torch.tensor([7, 8, 9])),
        MaskedBatch(texts, grid.clone().fill_(IGNORE), torch.tensor([0, 1, 0])),
        PermutationBatch(texts, grid, fresh=False),
        BidirectionalBatch(
            six, torch.arange(18).view(6, 3), False, torch.tensor([True, False, True])
        ),
    ]


@pytest.mark.parametrize("batch", batches(), ids=lambda one: type(one).__name__)
def test_the_rows_of_a_batch_are_divided_without_rest(batch):
    parts = [batch.select(torch.tensor(rows)) for rows in ([0], [1, 2])]
    assert [len(part) for part in parts] == [1, 2]
    if not isinstance(batch, Sequences):
        for name, whole in vars(batch).items():
            if isinstance(whole, torch.Tensor) and not isinstance(batch, BidirectionalBatch):
                assert torch.equal(torch.cat([vars(part)[name] for part in parts]), whole)
    if isinstance(batch, GroupBatch):
        assert parts[1].texts.ids[:, 0].tolist() == [3, 4, 7, 8, 9]
    if isinstance(batch, BidirectionalBatch):
        assert parts[1].tokens.ids[:, 0].tolist() == [3, 4, 8, 9]
        assert parts[1].targets[:, 0].tolist() == [3, 6, 12, 15]
        assert parts[1].restarts.tolist() == [False, True]
