"""metrics.jsonl is read while a training writes it."""

from __future__ import annotations

import pytest

from regard.errors import CheckpointError
from regard.training.metrics_log import METRICS, MetricsLog, read_events


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
