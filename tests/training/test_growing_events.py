"""metrics.jsonl is read while a training writes it."""

from __future__ import annotations

import os

import pytest

from regard.errors import CheckpointError
from regard.training.metrics_log import METRICS, GrowingEvents, MetricsLog, read_events


def test_events_are_read_as_they_are_written(tmp_path):
    log, growing = MetricsLog(tmp_path), GrowingEvents(tmp_path)
    growing.read()
    assert growing.all == []
    for step in range(1, 6):
        log.write(step, {"train/loss": 1 / step})
        growing.read()
        assert growing.all == read_events(tmp_path)
        assert growing.all[-1]["step"] == step
    log.close()


def test_a_resumed_run_is_read_again_from_its_beginning(tmp_path):
    log, growing = MetricsLog(tmp_path), GrowingEvents(tmp_path)
    log.write(1, {"train/loss": 2.0})
    kept = log.length()
    log.write(2, {"train/loss": 1.0})
    growing.read()
    log.close()
    again = MetricsLog(tmp_path, kept)
    growing.read()
    assert [event["step"] for event in growing.all] == [1]
    growing.read()
    again.write(2, {"train/loss": 3.0})
    again.write(3, {"train/loss": 2.5})
    again.close()
    growing.read()
    assert growing.all == read_events(tmp_path)
    # Of the same length as what was read, and longer: the last line tells them apart.
    os.truncate(tmp_path / METRICS, kept)
    MetricsLog(tmp_path, kept).write(2, {"train/loss": 9.0})
    growing.read()
    assert growing.all == read_events(tmp_path)


def test_a_damaged_line_and_a_missing_file_raise_an_error_that_names_them(tmp_path):
    growing = GrowingEvents(tmp_path)
    with pytest.raises(CheckpointError, match=METRICS):
        growing.read()
    (tmp_path / METRICS).write_bytes(b'{"step": 1}\n{"step": "x"}\n')
    with pytest.raises(CheckpointError, match=f"{METRICS}:2"):
        growing.read()
    assert growing.all == [{"step": 1}]
