"""The output of a training in a notebook: a progress bar and curves, redrawn while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from html import escape
from typing import Any

from regard.training.callbacks import Callback, Step
from regard.training.progress import Status
from regard.visual.page import fragment
from regard.visual.report import training_curves

CURVES_EVERY = 2.0  # seconds between two drawings of the curves


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, whose output may be HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookProgress(Callback):
    """A `Progress` and a `Callback` with one output, which is replaced as the training runs.

    every: seconds between two calls of `show`.
    """

    every = 0.5

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html = HTML
        self._events: list[dict[str, Any]] = []
        self._messages: list[str] = []
        self._status, self._curves = "starting", ""
        self._fraction, self._step, self._finished = 0.0, 0, False
        self._curves_at, self._shown_at = 0.0, time.monotonic()  # times of the last drawing
        self._output = display(HTML(self.html()), display_id=True)

    def html(self) -> str:
        """The HTML that is shown now."""
        said = "".join(f"<div>{escape(message)}</div>" for message in self._messages[-3:])
        bar = f'<progress max="1" value="{self._fraction:.4f}" aria-label="training"></progress>'
        return fragment(f"<div>{bar} {escape(self._status)}</div>{said}{self._curves}")

    # ---- progress

    def show(self, status: Status) -> None:
        self._fraction, self._status = status.fraction, str(status)
        self._refresh()

    def say(self, message: str) -> None:
        """See `Progress`; messages within `every` seconds are shown together."""
        self._messages.append(message)
        if time.monotonic() - self._shown_at > self.every:
            self._refresh()

    def warn(self, message: str) -> None:
        self._messages.append(f"Warning: {message}")
        self._refresh()

    def close(self) -> None:
        how = "finished after" if self._finished else "stopped at"
        self._status = f"{how} step {self._step:,}" if self._step else how.split()[0]
        self._draw_curves()
        self._refresh()

    # ---- callbacks

    def on_step(self, step: Step) -> None:
        self._step = step.number

    def on_log(self, step: int, values: Mapping[str, Any]) -> None:
        self._events.append({"step": step, **values})
        if time.monotonic() - self._curves_at > CURVES_EVERY:
            self._draw_curves()

    def on_end(self, result: object) -> None:
        self._fraction, self._finished = 1.0, True

    def _draw_curves(self) -> None:
        charts = training_curves(self._events).body() if self._events else ""
        self._curves = f'<div class="rg-charts">{charts}</div>'
        self._curves_at = time.monotonic()

    def _refresh(self) -> None:
        self._output.update(self._html(self.html()))
        self._shown_at = time.monotonic()
