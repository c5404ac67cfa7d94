"""The progress display of a training."""

from __future__ import annotations

import io
import math

import pytest

from regard.progress import Bar, Lines, Silent
from regard.training.callbacks import Status, display_of

STATUS = Status(1200, 2.5, 0.41, 4812.3, 3.21456, 7.1e-4, 751)


def test_a_line_has_update_epoch_loss_rate_and_time_left():
    out = io.StringIO()
    Lines(out=out).show(STATUS)
    assert out.getvalue()[9:] == (
        "step 1,200 · epoch 2.50 · 41.0% · loss 3.2146 · lr 7.10e-04 · 4,812 tokens/s · "
        "12:31 left\n"
    )


@pytest.mark.parametrize(("left", "told"), [(59.6, "1:00"), (7325, "2:02:05"), (math.inf, "?")])
def test_the_time_left_has_minutes_or_hours(left, told):
    status = Status(1, 0.1, 0.1, 1, 1, 1, left)
    assert str(status).endswith(f"{told} left")


def test_without_a_terminal_lines_are_printed(capsys):
    assert isinstance(display_of(True), Lines)
    Silent().warn("the disk is full")
    assert "Warning: the disk is full" in capsys.readouterr().err


def test_the_bar_shows_rate_and_time_left(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    bar = Bar()
    bar.show(STATUS)
    bar.say("validation [x]")
    bar.close()
    told = capsys.readouterr().err
    assert "4,812 tokens/s · 12:31 left" in told
    assert "validation [x]" in told
