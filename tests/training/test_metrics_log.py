"""What a training reports: means since the line before, rates, and the time that is left."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch

from regard.training import metrics_log
from regard.training.callbacks import Status
from regard.training.checkpointing import Counters
from regard.training.metrics_log import MetricsLog, Report, read_events


class Shown:
    """A display that keeps what it is given; it wants the status every 5 seconds."""

    every = 5.0

    def __init__(self):
        self.statuses, self.messages = [], []
        self.show, self.say = self.statuses.append, self.messages.append


def losses(**sums):
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in sums.items()}


def test_a_line_has_the_means_and_the_rate_since_the_line_before(tmp_path):
    counters = Counters(step=10, tokens=100, seconds=4.0)
    report = Report(MetricsLog(tmp_path), Shown(), "words", counters, [])
    report.add([losses(a=3.0, b=1.0), losses(a=5.0, b=2.0)], {"a": 4, "b": 2})
    report.add([losses(a=1.0)], {"a": 2})
    counters.step, counters.tokens, counters.seconds = 12, 130, 4.5
    report.log(1.5, 0.1, 2.0)
    report.add([losses(a=6.0)], {"a": 4})
    counters.step, counters.tokens, counters.seconds = 13, 150, 5.5
    report.log(1.6, 0.2, float("inf"))
    report.close()
    two = {"train/loss": 1.5 + 1.5, "train/a": 9 / 6, "train/b": 3 / 2}
    assert read_events(tmp_path) == [
        {"step": 12, "epoch": 1.5, "words": 130, **two, "lr": 0.1, "grad_norm": 2.0,
         "seconds": 4.5, "words_per_s": 60.0},
        {"step": 13, "epoch": 1.6, "words": 150, "train/loss": 1.5, "lr": 0.2, "grad_norm": None,
         "seconds": 5.5, "words_per_s": 20.0},
    ]  # fmt: skip


def test_the_status_is_shown_when_its_time_has_come(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(metrics_log, "time", SimpleNamespace(monotonic=lambda: now[0]))
    shown, counters = Shown(), Counters(step=8, tokens=60, seconds=3.0)
    report = Report(None, shown, "words", counters, [])
    report.meters.add([losses(a=3.0)], {"a": 4})
    for at, fraction in ((104.9, 0.1), (105.0, 0.25), (109.9, 0.3), (110.0, 0.0)):
        now[0] = at
        report.show_if_due(1.5, fraction, 0.1)
    assert shown.statuses == [
        Status(8, 1.5, 0.25, 20.0, 0.75, 0.1, 9.0, "words"),
        Status(8, 1.5, 0.0, 20.0, 0.75, 0.1, math.inf, "words"),
    ]
    assert report.length() == 0 and report.close() is None


def test_messages_have_the_scores_to_four_digits():
    shown = Shown()
    report = Report(None, shown, "words", Counters(step=1000), [])
    report.validated({"loss": 0.123456, "bleu": 31.0}, {"epoch": 2.0})
    report.validated({}, {"average": ["step-000001"]})
    report.tested({"bleu": 30.0})
    assert shown.messages == [
        "step 1,000: validation: loss 0.1235 · bleu 31",
        "step 1,000: validation of the averaged weights: no scores",
        "test data: bleu 30",
    ]
