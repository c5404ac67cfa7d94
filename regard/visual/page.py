"""The page around a picture: one style sheet, both themes, nothing from the network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
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


def scrolling(content: str, name: str) -> str:
    """Content that may be wider than the screen: it scrolls, by the keyboard too.

    name: what the content is, for readers who do not see it.
    """
    label = escape(visible(name))
    region = f'role="region" tabindex="0" aria-label="{label}"'
    return f'<div class="rg-figure rg-scroll" {region}>{content}</div>'


def sections(parts: Iterable[tuple[str, str]]) -> str:
    """The sections (heading, HTML) that have a content; from three on after a table of contents."""
    shown = [(heading, body) for heading, body in parts if body]
    names = _unique_names([heading for heading, _ in shown])
    written, links = "", ""
    for (heading, body), name in zip(shown, names, strict=True):
        title = escape(visible(heading))
        written += f'<section id="{name}"><h2>{title}</h2>{body}</section>'
        links += f'<li><a href="#{name}">{title}</a></li>'
    contents = f'<nav class="rg-contents" aria-label="Contents"><ul>{links}</ul></nav>'
    return (contents if len(shown) >= 3 else "") + written


def _unique_names(headings: Iterable[str]) -> list[str]:
    """An id for each heading: its words with hyphens, and a number where it is repeated."""
    names: list[str] = []
    for heading in headings:
        plain = "-".join(re.findall(r"\w+", heading.lower())) or "section"
        name, count = plain, 1
        while name in names:
            count += 1
            name = f"{plain}-{count}"
        names.append(name)
    return names


def inert_json(value: Any) -> str:
    """JSON that cannot close the <script> element that contains it, whatever its strings are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", errors="replace").decode("utf-8")
