"""Runs that are killed, interrupted, damaged or out of disk space: what resuming them gives."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from toy import KINDS, Toy, options

from regard.checkpoints import store as checkpoints
from regard.errors import CheckpointError, ConfigError
from regard.training import run as training_run
from regard.training.checkpointing import Checkpointer
from regard.training.interrupt import Interrupted, Paused, Stopped
from regard.training.loop import Loop
from regard.training.metrics_log import TIMING
from regard.training.options import CheckpointOptions, OptimizerOptions, ValidationOptions
from regard.training.run import resume, train


def outcome(folder: Path):
    """What must be equal: the bytes of all weights, the lines without the clock, the result."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_bytes())
    for timed in [*lines, result]:
        for key in TIMING:
            timed.pop(key, None)
    kept = {path.parent.parent.name: path for path in folder.glob("by_words/*/model/*.safetensors")}
    if kept:  # after each epoch of a million words
        assert {*kept} == {f"chck_{n}M" for n in range(1, result["step"] // 4 + 1)}
    kept["best"] = folder / "model" / "model.safetensors"
    return {name: path.read_bytes() for name, path in kept.items()}, lines, result


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    found = {}

    def of(kind: str):
        if kind not in found:
            folder = tmp_path_factory.mktemp(kind) / "run"
            train(Toy(), KINDS[kind](), folder, progress=False)
            found[kind] = folder
        return found[kind]

    torch.set_num_threads(1)
    return of


# ---- killed -----------------------------------------------------------------------------------


@pytest.mark.slow("regard/training", "regard/data")
def test_runs_killed_at_random_moments_end_with_the_same_bits(tmp_path, undisturbed):
    """Accumulation, dropout, carried LSTM state, the middle of an epoch, best or mean weights."""
    command = [sys.executable, str(Path(__file__).parent / "toy.py"), "6", str(os.getpid())]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for kind in KINDS:
        runs = list((tmp_path / kind).iterdir())
        assert runs
        for run in runs:
            assert outcome(run) == outcome(undisturbed(kind)), kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_stopped_before_every_update_ends_with_the_same_bits(
    tmp_path, undisturbed, kind, monkeypatch
):
    """Even one step at a time, through a checkpoint each, nothing changes."""
    whole, step = outcome(undisturbed(kind)), Loop.step

    def one(self):
        if getattr(self, "went", False):
            self.interruption.code = 130
            raise Stopped
        self.went = True
        step(self)

    monkeypatch.setattr(Loop, "step", one)
    folder = tmp_path / "run"
    for _ in range(100):
        try:
            resume(Toy(), KINDS[kind](), folder, progress=False)
            break
        except Interrupted:
            continue
    assert outcome(folder) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_paused_at_parts_of_its_budget_ends_with_the_same_bits(tmp_path, undisturbed, kind):
    folder, paused = tmp_path / "run", []
    for part in (0.05, 0.05, 0.15):
        with pytest.raises(Paused) as stopped:
            resume(Toy(), KINDS[kind](), folder, progress=False, stop_after_fraction=part)
        paused.append(stopped.value)
    assert paused[0].step == paused[1].step < paused[2].step
    result = resume(Toy(), KINDS[kind](), folder, progress=False, stop_after_fraction=1.0)
    assert outcome(folder) == outcome(undisturbed(kind)) and result.step > paused[2].step
    name, direction = paused[0].goal
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    scores = {line["step"]: line[f"valid/{name}"] for line in lines if f"valid/{name}" in line}
    best = max if direction == "max" else min
    for one in paused:  # its own validations, and one more where it has paused
        before = [score for step, score in scores.items() if step <= one.step]
        assert best(*before, one.best) == one.best if before else one.best is not None


def test_resuming_a_finished_run_changes_nothing(undisturbed, capsys):
    folder = undisturbed("average")
    before = outcome(folder)
    result = resume(Toy(), options(), folder, progress=True)
    assert "is finished: there is nothing to resume" in capsys.readouterr().err
    assert result.reason == "33 steps"
    assert outcome(folder) == before


# ---- interrupted ------------------------------------------------------------------------------


def forked(folder: Path, task: Toy, chosen=None) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            resume(task, chosen or options(), folder, progress=False)
            os._exit(0)
        except Interrupted as stop:
            os._exit(stop.code)
        except KeyboardInterrupt:
            os._exit(99)
        except BaseException:
            os._exit(1)
    return pid


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def wait_for(path: Path) -> None:
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.005)


def signalled(pid: int, mark: Path, number: int) -> int:
    """Wait until the child rests, send the signal, let it go on; its exit code."""
    wait_for(mark)
    os.kill(pid, number)
    mark.with_suffix(".sent").touch()
    return exit_code(pid)


class Sleepy(Toy):
    """Says when it is in a step, or in a validation, and rests there until a signal was sent."""

    def __init__(self, mark: Path, where: str):
        super().__init__()
        self.mark, self.where, self.batches_seen = mark, where, 0

    def rest(self):
        self.mark.touch()
        wait_for(self.mark.with_suffix(".sent"))

    def losses(self, batch, carry):
        self.batches_seen += 1
        if self.where == "step" and self.batches_seen == 17:
            self.rest()
        return super().losses(batch, carry)

    def validate(self):
        if self.where == "validation":
            self.rest()
        return super().validate()


@pytest.mark.parametrize("where", ["step", "validation"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_a_checkpoint_and_stops(tmp_path, undisturbed, number, code, where):
    folder, mark = tmp_path / "run", tmp_path / "mark"
    assert signalled(forked(folder, Sleepy(mark, where)), mark, number) == code
    saved = max(path.name for path in (folder / "checkpoints").iterdir())
    assert saved == {"step": "step-000009", "validation": "step-000006"}[where]
    resume(Toy(), options(), folder, progress=False)
    assert outcome(folder) == outcome(undisturbed("average"))


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    class Stuck(Sleepy):
        def rest(self):
            self.mark.touch()
            time.sleep(15)

    mark = tmp_path / "mark"
    pid = forked(tmp_path / "run", Stuck(mark, "step"))
    wait_for(mark)
    began = time.monotonic()
    os.kill(pid, signal.SIGINT)
    time.sleep(0.1)
    os.kill(pid, signal.SIGINT)
    assert exit_code(pid) == 99
    assert time.monotonic() - began < 5


# ---- damaged ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> Path:
    """A run interrupted after 21 steps, with checkpoints 10, 15, 20, 21 and 18, the best."""
    folder = tmp_path_factory.mktemp("interrupted")
    mark = folder / "mark"

    class Late(Sleepy):
        def losses(self, batch, carry):
            if self.module.training and self.batches_seen == 38:
                self.rest()
            return super().losses(batch, carry)

    pid = forked(folder / "run", Late(mark, ""))
    assert signalled(pid, mark, signal.SIGTERM) == 143
    return folder / "run"


@pytest.fixture
def halfway(interrupted, tmp_path) -> Path:
    return shutil.copytree(interrupted, tmp_path / "run")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
@pytest.mark.parametrize("file", ["weights.safetensors", "facts.json", "manifest.json"])
def test_a_damaged_checkpoint_is_skipped_with_a_warning(halfway, undisturbed, capsys, damage, file):
    newest = sorted((halfway / "checkpoints").iterdir())[-1]
    damage(newest / file)
    resume(Toy(), options(), halfway, progress=True)
    told = capsys.readouterr().err
    assert f"Warning: {newest}" in told
    assert "is not used; trying the one before it" in told
    assert f"going on from {halfway / 'checkpoints' / 'step-000020'}" in told
    assert (halfway / "checkpoints" / f"damaged-{newest.name}").exists()
    assert outcome(halfway) == outcome(undisturbed("average"))


def test_only_damaged_checkpoints_are_an_error(halfway):
    for folder in (halfway / "checkpoints").iterdir():
        flip(folder / "memory.safetensors")
    with pytest.raises(CheckpointError, match="are damaged"):
        resume(Toy(), options(), halfway, progress=False)


# ---- changed ----------------------------------------------------------------------------------


def test_options_that_are_newer_than_a_run_have_their_defaults(tmp_path, monkeypatch):
    identity_now = training_run._identity

    def older_identity(*given):
        identity = identity_now(*given)
        del identity["training"]["compile"], identity["training"]["optimizer"]["weight_decay"]
        return identity

    with monkeypatch.context() as patched:
        patched.setattr(training_run, "_identity", older_identity)
        train(Toy(), options(max_steps=2), tmp_path, progress=False)
    changed = options(max_steps=2, optimizer=OptimizerOptions(weight_decay=0.5))
    with pytest.raises(ConfigError, match=r"weight_decay: was 0.*, is 0.5") as refused:
        resume(Toy(), changed, tmp_path, progress=False)
    assert "compile" not in str(refused.value)
    resume(Toy(), options(max_steps=2), tmp_path, progress=False)


def test_another_model_is_an_error(halfway):
    task = Toy()
    task.module.head = torch.nn.Linear(8, 14)
    with pytest.raises(CheckpointError, match=r"head\.bias must be \(14,\), but is \(13,\)"):
        resume(task, options(), halfway, progress=False)


# ---- a full disk ------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_checkpoint_before_and_training_goes_on(
    tmp_path, undisturbed, monkeypatch, capsys
):
    whole, refused = checkpoints.save_file, []

    def full(tensors, path, metadata):
        if "step-000005" in str(path) or "step-000010" in str(path):
            Path(path).write_bytes(b"half")
            refused.append(sorted(p.name for p in Path(path).parents[1].glob("step-*")))
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(tensors, path, metadata)

    monkeypatch.setattr(checkpoints, "save_file", full)
    train(Toy(), options(), tmp_path / "run", progress=True)
    told = capsys.readouterr().err
    assert refused == [["step-000000"], ["step-000000", "step-000006"]]  # the others stay
    assert "No space left on device" in told
    assert "The training goes on" in told
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    assert outcome(tmp_path / "run") == outcome(undisturbed("average"))


def test_a_first_checkpoint_that_cannot_be_written_is_an_error(tmp_path):
    """The kernel itself refuses (RLIMIT_FSIZE): a clear error when the first cannot be written."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            train(Toy(), options(), tmp_path / "run", progress=False)
        except CheckpointError as error:
            right = "could not be written" in str(error) and "File too large" in str(error)
            os._exit(7 if right else 8)
        except BaseException:
            os._exit(9)
    assert exit_code(pid) == 7
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_weights_that_could_not_be_saved_are_not_the_best(tmp_path, monkeypatch):
    save = Checkpointer.save

    def full(self):
        if self.counters.step == 12:
            raise CheckpointError("no space")
        save(self)

    monkeypatch.setattr(Checkpointer, "save", full)
    chosen = options(max_steps=13, checkpoints=CheckpointOptions(save_seconds=0))
    result = train(Toy(), chosen, tmp_path / "a", progress=False)
    assert result.best_step == 13
    chosen = options(
        max_steps=13,
        checkpoints=CheckpointOptions(save_seconds=0),
        validation=ValidationOptions(eval_steps=12, patience=1),
    )
    shutil.rmtree(tmp_path / "a")
    assert train(Toy(), chosen, tmp_path / "a", progress=False).best_step == 13
