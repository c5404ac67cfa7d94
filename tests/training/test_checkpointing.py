"""The folder of a run: order, free names, and which checkpoints are deleted."""

from __future__ import annotations

import errno
import os

import pytest
import torch
from toy import KINDS, Toy

from regard.checkpoints.store import write_folder
from regard.errors import CheckpointError, ConfigError, MissingExtra
from regard.training.checkpointing import RunFolder
from regard.training.metrics_log import METRICS, MetricsLog, read_events
from regard.training.run import resume, train


def filled(folder, *names: str) -> RunFolder:
    run = RunFolder(folder)
    for name in names:
        write_folder(run.checkpoints / name, {"weights": {"a": torch.zeros(1)}}, {"name": name})
    return run


def names(run: RunFolder) -> list[str]:
    return [path.name for path in run.saved()]


def test_prune_keeps_the_newest_and_the_named_checkpoints(tmp_path):
    run = filled(tmp_path, *(f"step-{n:06d}" for n in (0, 10, 13, 20, 30, 31)), "step-000030.1")
    assert [path.name for path in run.at_multiples_of(10)] == [
        "step-000010",
        "step-000020",
        "step-000030.1",
    ]
    run.prune(2, also={"step-000013", ""})
    assert names(run) == ["step-000013", "step-000030.1", "step-000031"]
    assert not list(run.checkpoints.glob(".*"))


@pytest.mark.parametrize("verb", [train, resume])
def test_a_second_process_in_the_folder_is_an_error(tmp_path, verb):
    run = filled(tmp_path, "step-000001")
    (run.checkpoints / ".step-000002.writing").mkdir()  # by the other process, at this moment
    with run.locked():
        with pytest.raises(ConfigError, match="another process is training in"):
            verb(Toy(), KINDS["best"](), tmp_path, progress=False)
    assert (run.checkpoints / ".step-000002.writing").exists()
    with run.locked():  # it is free again
        pass


def test_leftovers_of_a_killed_process_are_deleted(tmp_path):
    run = filled(tmp_path, "step-000001")
    (run.checkpoints / ".step-000002.writing").mkdir()
    (run.checkpoints / ".step-000000.deleted").mkdir()
    run.remove_leftovers()
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-000001"]


# ---- metrics.jsonl ----------------------------------------------------------------------------


def test_events_after_the_checkpoint_are_cut_off(tmp_path):
    record = MetricsLog(tmp_path)
    record.write(1, {"lr": 0.5})
    length = record.length()
    record.write(2, {"lr": float("nan")})
    record.close()
    assert read_events(tmp_path) == [{"step": 1, "lr": 0.5}, {"step": 2, "lr": None}]
    record = MetricsLog(tmp_path, length)
    record.write(2, {"lr": 0.25})
    record.close()
    assert read_events(tmp_path) == [{"step": 1, "lr": 0.5}, {"step": 2, "lr": 0.25}]


def test_events_survive_a_disk_that_was_full_for_a_while(tmp_path, monkeypatch):
    record, write = MetricsLog(tmp_path), os.pwrite
    room = [10]  # a partial write, then none, then all

    def full(file, data, offset):
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        part = min(room[0], len(data))
        room[0] -= part
        return write(file, data[:part], offset)

    monkeypatch.setattr("os.pwrite", full)
    record.write(1, {"lr": 0.5})
    record.write(2, {"lr": 0.4})
    with pytest.raises(OSError, match="No space left"):
        record.length()
    monkeypatch.setattr("os.pwrite", write)
    record.write(3, {"lr": 0.3})
    record.close()
    assert [line["step"] for line in read_events(tmp_path)] == [1, 2, 3]


def test_a_missing_tensorboard_is_an_error_that_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"pip install 'regard\[track\]'"):
        MetricsLog(tmp_path, tensorboard=True)


# ---- metrics log


def test_events_are_read_as_they_are_written(tmp_path):
    log = MetricsLog(tmp_path)
    for step in range(1, 4):
        log.write(step, {"train/loss": 1 / step})
        assert read_events(tmp_path)[-1] == {"step": step, "train/loss": 1 / step}
    log.close()
    with (tmp_path / METRICS).open("ab") as file:
        file.write(b'{"step": 4, "tr')
    assert [event["step"] for event in read_events(tmp_path)] == [1, 2, 3]


def test_a_damaged_line_and_a_missing_file_raise_an_error_that_names_them(tmp_path):
    with pytest.raises(CheckpointError, match=METRICS):
        read_events(tmp_path)
    (tmp_path / METRICS).write_bytes(b'{"step": 1}\n{"step": "x"}\n')
    with pytest.raises(CheckpointError, match=f"{METRICS}:2"):
        read_events(tmp_path)
