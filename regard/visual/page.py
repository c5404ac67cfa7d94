"""The page around a picture: one style sheet, both themes, nothing from the network."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from regard.visual.drawing import visible


@cache
def asset(name: str) -> str:
    """A file of `regard/visual/assets` as text."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def fragment(body: str) -> str:
    """`body` with its style, for the output of a notebook or another page."""
    return f'<div class="rg"><style>{asset("page.css")}</style>{body}</div>'


def page(title: str, body: str) -> str:
    """An HTML document."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(visible(title or 'Regard'))}</title>"
        f"<style>{asset('page.css')}</style></head>"
        f'<body class="rg rg-page"><main>{body}</main></body></html>\n'
    )


def inert_json(value: Any) -> str:
    """JSON that cannot close the <script> element that contains it, whatever its strings are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", errors="replace").decode("utf-8")
