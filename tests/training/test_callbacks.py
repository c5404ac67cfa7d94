"""Callbacks: their errors end a run, which resumes exactly; loggers and lines of progress."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from toy import Toy, options

from regard.errors import MissingExtra
from regard.progress import Bar, Lines, Silent
from regard.training.callbacks import Callback, Status, display_of
from regard.training.metrics_log import WandbLogger, read_events
from regard.training.run import resume, train


class Failing(Callback):
    """Raises an error at one call of one method."""

    def __init__(self, method: str, error: type[Exception]):
        self.method, self.error = method, error

    def on_step(self, step):
        if self.method == "step" and step.number == 17:
            raise self.error("of the callback")

    def on_validation(self, step, scores):
        if self.method == "validation":
            raise self.error("of the callback")

    def on_checkpoint(self, path):
        assert (path / "manifest.json").is_file()
        if self.method == "checkpoint" and path.name == "step-000010":
            raise self.error("of the callback")


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> bytes:
    """Those of a training that nothing stops."""
    folder = tmp_path_factory.mktemp("whole")
    train(Toy(), options(), folder / "run", progress=False)
    return (folder / "run/model/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("method", "error"),
    [("step", OSError), ("validation", RuntimeError), ("checkpoint", KeyboardInterrupt)],
)
def test_an_error_of_a_callback_ends_the_run_which_then_resumes_exactly(
    tmp_path, weights, method, error
):
    with pytest.raises(error, match="of the callback"):
        train(
            Toy(), options(), tmp_path / "run", progress=False, callbacks=[Failing(method, error)]
        )
    resume(Toy(), options(), tmp_path / "run", progress=False)
    assert (tmp_path / "run/model/model.safetensors").read_bytes() == weights


class Log(list):
    def method(self, name):
        return lambda *args, **kwargs: self.append((name, args, kwargs))


def test_weights_and_biases_gets_curves_and_final_scores(tmp_path, monkeypatch):
    log = Log()
    run = SimpleNamespace(
        log=log.method("log"), finish=log.method("finish"),
        summary=SimpleNamespace(update=log.method("summary")),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **options: run))
    result = train(
        Toy(), options(), tmp_path / "run", progress=False, callbacks=[WandbLogger(project="toy")]
    )
    assert [name for name, _, _ in log[-2:]] == ["summary", "finish"]
    assert log[-2][1] == (result.scores,)
    lines = read_events(tmp_path / "run")
    assert [kwargs["step"] for name, _, kwargs in log if name == "log"] == [
        line["step"] for line in lines
    ]
    assert "train/loss" in log[0][1][0]


def test_a_logger_whose_package_is_missing_names_the_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"regard\[wandb\]"):
        WandbLogger()


# ---- progress

STATUS = Status(1200, 2.5, 0.41, 4812.3, 3.21456, 7.1e-4, 751)


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
