"""The files of the web UI, and what browsers are told about them.

No file names an address of another machine, and none has a script or a style within another file:
the policy forbids both, so that a text that a model read or wrote is never run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


@dataclass(frozen=True)
class PageFile:
    """What a browser gets for a path."""

    content: bytes
    media_type: str


def page_files() -> dict[str, PageFile]:
    """The files by the paths at which they are served; the first page is `/`."""
    found = {
        f"/page/{path}": PageFile(file.read_bytes(), TYPES[path.rpartition(".")[2]])
        for path, file in _below(files(__package__) / "page")
    }
    return {"/": found.pop("/page/index.html"), **found}


def _below(folder: Traversable, above: str = "") -> Iterator[tuple[str, Traversable]]:
    """The files of a folder and of those in it, by their paths."""
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        if one.is_dir():
            yield from _below(one, f"{above}{one.name}/")
        elif one.name.rpartition(".")[2] in TYPES:
            yield above + one.name, one
