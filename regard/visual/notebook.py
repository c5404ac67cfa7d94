"""The output of a training in a notebook: a progress bar and curves, drawn again as it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from html import escape
from typing import Any

from regard.training.callbacks import Callback, Update
from regard.training.progress import Status
from regard.visual.page import fragment
from regard.visual.report import training_curves

DRAWN = 2.0  # seconds between two drawings of the curves


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, whose output may be HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookProgress(Callback):
    """A `Progress` and a `Callback`: what it shows is one output, which it replaces."""

    every = 0.5

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html = HTML
        self._events: list[dict[str, Any]] = []
        self._messages: list[str] = []
        self._status, self._curves = "starting", ""
        self._fraction, self._updates, self._ended = 0.0, 0, False
        self._drawn, self._shown = 0.0, time.monotonic()  # when that was last
        self._output = display(HTML(self.html()), display_id=True)

    def html(self) -> str:
        """What is shown now."""
        said = "".join(f"<div>{escape(message)}</div>" for message in self._messages[-3:])
        bar = f'<progress max="1" value="{self._fraction:.4f}" aria-label="training"></progress>'
        return fragment(f"<div>{bar} {escape(self._status)}</div>{said}{self._curves}")

    # ---- progress

    def show(self, status: Status) -> None:
        """See `Progress`."""
        self._fraction, self._status = status.fraction, str(status)
        self._update()

    def say(self, message: str) -> None:
        """See `Progress`; messages that come fast are shown together."""
        self._messages.append(message)
        if time.monotonic() - self._shown > self.every:
            self._update()

    def warn(self, message: str) -> None:
        """See `Progress`."""
        self._messages.append(f"Warning: {message}")
        self._update()

    def close(self) -> None:
        """See `Progress`."""
        how = "finished after" if self._ended else "stopped at"
        self._status = f"{how} update {self._updates:,}" if self._updates else how.split()[0]
        self._draw()
        self._update()

    # ---- callbacks

    def on_update(self, update: Update) -> None:
        """See `Callback`."""
        self._updates = update.number

    def on_log(self, update: int, values: Mapping[str, Any]) -> None:
        """See `Callback`."""
        self._events.append({"update": update, **values})
        if time.monotonic() - self._drawn > DRAWN:
            self._draw()

    def on_end(self, result: object) -> None:
        """See `Callback`."""
        self._fraction, self._ended = 1.0, True

    def _draw(self) -> None:
        charts = training_curves(self._events).body() if self._events else ""
        self._curves = f'<div class="rg-charts">{charts}</div>'
        self._drawn = time.monotonic()

    def _update(self) -> None:
        self._output.update(self._html(self.html()))
        self._shown = time.monotonic()
