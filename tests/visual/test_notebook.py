"""The progress of a training in a notebook: one output that is replaced, and safe HTML."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from regard.training.callbacks import Status, Step
from regard.visual.report import NotebookProgress, in_notebook

STATUS = Status(5, 1.0, 0.25, 100.0, 2.5, 1e-3, 60.0)


@pytest.fixture
def shown(monkeypatch) -> list[str]:
    """What the output has shown, one HTML text after the other."""
    found: list[str] = []
    output = SimpleNamespace(update=found.append)

    def display(html: str, display_id: bool) -> SimpleNamespace:
        found.append(html)
        return output

    module = SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=module))
    return found


def test_the_bar_and_the_curves_grow_in_one_output(shown):
    progress = NotebookProgress()
    progress.show(STATUS)
    assert 'value="0.2500"' in shown[-1] and "step 5" in shown[-1] and "<svg" not in shown[-1]
    for step in range(1, 4):
        progress.on_log(step, {"train/loss": 3.0 - step, "seconds": 1.0})
    progress.on_step(Step(3, 1.0, 1e-3, 1.0))
    progress.on_end(None)
    progress.close()
    assert 'value="1.0000"' in shown[-1] and shown[-1].count("<svg") >= 1
    assert "finished after step 3" in shown[-1] and "1:00 left" not in shown[-1]


def test_an_interrupted_training_shows_the_update_at_which_it_stopped(shown):
    progress = NotebookProgress()
    progress.show(STATUS)
    progress.on_step(Step(7, 1.0, 1e-3, 1.0))
    progress.close()
    assert "stopped at step 7" in shown[-1] and 'value="0.2500"' in shown[-1]


def test_a_terminal_is_no_notebook(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    shell = type("TerminalInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert not in_notebook()
    kernel = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))
    assert in_notebook()
