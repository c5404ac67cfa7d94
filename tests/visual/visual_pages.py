"""Helpers of the tests of pages: a small HTML reader."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from array import array
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.cells import cell_len

SAVAGE = [
    "<script>alert(1)</script>",
    "日本語",
    "😀",
    "שלום",
    "$x$ $",
    'a"b',
    "tab\there",
    "\ud800",
]
"""Words that break pictures: markup, wide, emoji, right to left, mathtext, quotes, control."""


VOID = {"meta", "input", "br", "link", "img"}


class Tree(HTMLParser):
    """Every element with its attributes, its text and its ancestors."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[dict] = []
        self._open: list[dict] = []
        self.feed(page)
        assert self._open == [], "an element is not closed"

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), f"<{tag}> has an attribute twice"
        element = {"tag": tag, **dict(attrs), "text": "", "above": list(self._open)}
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append({"tag": tag, **dict(attrs), "text": "", "above": list(self._open)})

    def handle_endtag(self, tag):
        assert self._open.pop()["tag"] == tag

    def handle_data(self, data):
        if self._open:
            self._open[-1]["text"] += data

    def all(self, tag: str) -> list[dict]:
        return [element for element in self.elements if element["tag"] == tag]


def addresses(page: str) -> list[str]:
    """Everything on the page that points to another machine; names of namespaces do not."""
    return re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"')]*", re.sub(r' xmlns="[^"]*"', "", page))


def scripts(page: str) -> int:
    return len(Tree(page).all("script"))


def embedded(page: str) -> list[dict]:
    """The data of each picture of heads on the page."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', page, re.S)
    return [json.loads(text) for text in found]


def weights(panel: dict) -> list[float]:
    """The weights as the page's script unpacks them."""
    numbers = array("H", base64.b64decode(panel["data"]))
    return [number * panel["scale"] / 65535 for number in numbers]


def widest(text: str) -> int:
    return max(cell_len(line) for line in text.splitlines())


def in_browser(body: str, folder: Path) -> str:
    """The text that the scripts of a page write into its element `probe`."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser (chromium) on this machine")
    page = folder / "page.html"
    page.write_text("<!doctype html><meta charset=utf-8>" + body, encoding="utf-8")
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
    flags += " --disable-component-step --disable-sync --virtual-time-budget=2000 --dump-dom"
    run = subprocess.run(
        [browser, *flags.split(), f"--user-data-dir={folder / 'profile'}", page.as_uri()],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return unescape(re.search(r'<pre id="probe">(.*?)</pre>', run.stdout, re.S)[1])
