"""Articles in plain text with headings: the lead, and what it summarizes.

    = Title =                             or   # Title
    The lead.
    == A section ==                       or   ## A section
    Its text.

The text before the first section of an encyclopedia's article summarizes the others (Liu et al.
2018, "Generating Wikipedia by Summarizing Long Sequences").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike

from regard.data.datasets.records import RecordReader, Source
from regard.data.files import lines
from regard.data.token_arrays import ReadReport

# Wikitext, also as WikiText-2 and WikiText-103 write it ("= = A section = ="), and Markdown.
_WIKITEXT = re.compile(
    r"\s*(?P<signs>=(?: ?=)*)\s*(?P<title>[^=\s](?:.*[^=\s])?)\s*(?P<closing>=(?: ?=)*)\s*"
)
_MARKDOWN = re.compile(r"(?P<signs>#{1,6})\s+(?P<title>\S.*?)\s*#*\s*")


@dataclass(frozen=True)
class Article:
    """title: without its marks.  lead: the text before the first section.  body: all sections, with
    their headings. Of both, paragraphs are lines.
    """

    title: str
    lead: str
    body: str


def read_articles(path: str | PathLike[str]) -> RecordReader[Article]:
    """The articles of a text file; those without a lead or without sections are left out.

    A heading has a line of its own. The first level begins an article; text before the first one
    belongs to none. The reader's `report` counts what is left out.

    Raises:
        DataError: while it is read: the file cannot be read, or has no article.
    """
    return RecordReader(path, _read, "article", unit="line")


def heading(line: str) -> tuple[int, str] | None:
    """The level of a heading, from 1, and its title; None for other lines."""
    if match := _WIKITEXT.fullmatch(line):
        level = match["signs"].count("=")
        return (level, match["title"]) if level == match["closing"].count("=") else None
    if match := _MARKDOWN.fullmatch(line):
        return len(match["signs"]), match["title"]
    return None


def _read(source: Source, report: ReadReport) -> Iterator[tuple[int, Article]]:
    assert isinstance(source, str)
    for number, title, paragraphs in _articles(source):
        report.read += 1
        starts = [i for i, line in enumerate(paragraphs) if heading(line)]
        at = starts[0] if starts else len(paragraphs)
        article = Article(title, _joined(paragraphs[:at]), _joined(paragraphs[at:]))
        if not article.lead:
            report.note("articles without a lead", number)
        elif all(heading(line) for line in paragraphs[at:]):
            report.note("articles without text in sections", number)
        else:
            yield number, article


def _articles(path: str) -> Iterator[tuple[int, str, list[str]]]:
    """The line of each article's title, the title, and the lines below it that are not empty."""
    begun: tuple[int, str, list[str]] | None = None
    for number, line in enumerate(lines(path), 1):
        parsed = heading(line)
        if parsed and parsed[0] == 1:
            if begun:
                yield begun
            begun = number, parsed[1], []
        elif begun and line.strip():
            begun[2].append(line.strip())
    if begun:
        yield begun


def _joined(paragraphs: Sequence[str]) -> str:
    return "\n".join(paragraphs)
