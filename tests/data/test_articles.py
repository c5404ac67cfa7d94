"""Articles of plain text with headings, against what the files say."""

from __future__ import annotations

import re

import pytest

from regard.data import Article, read_articles
from regard.data.datasets.articles import heading
from regard.errors import DataError

WIKITEXT = """Text before the first title.
= Lobster =

The lobster is an animal.
It lives in the sea.

== Life ==
It grows.

=== Food ===
It eats.
= No sections =
A lead alone.
= No lead =
== Section ==
Text.
= No text =
A lead.
== Section ==
= Crab =
A crab = an animal.
== Life ==
It walks.
"""
LOBSTER = Article(
    "Lobster",
    "The lobster is an animal.\nIt lives in the sea.",
    "== Life ==\nIt grows.\n=== Food ===\nIt eats.",
)


def test_the_lead_is_the_text_before_the_first_section(tmp_path):
    (tmp_path / "a.txt").write_text(WIKITEXT)
    reader = read_articles(tmp_path / "a.txt")
    crab = Article("Crab", "A crab = an animal.", "== Life ==\nIt walks.")
    assert [*reader] == [*reader] == [LOBSTER, crab]
    assert (reader.report.read, reader.report.kept) == (5, 2)
    assert reader.report.events == {
        "articles without text in sections": {"count": 2, "first_line": 12},
        "articles without a lead": {"count": 1, "first_line": 14},
    }


def test_markdown_and_wikitext_give_the_same_articles(tmp_path):
    markdown = re.sub(r"(?m)^(=+) (.*) =+$", lambda m: "#" * len(m[1]) + f" {m[2]}", WIKITEXT)
    (tmp_path / "a.md").write_text(markdown)
    found = [*read_articles(tmp_path / "a.md")]
    assert [one.lead for one in found] == [LOBSTER.lead, "A crab = an animal."]
    assert found[0].body == "## Life\nIt grows.\n### Food\nIt eats."


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("= Title =", (1, "Title")),
        (" = = Life cycle = = \n", (2, "Life cycle")),
        ("===Food===", (3, "Food")),
        ("= a = b =", (1, "a = b")),
        ("== uneven =", None),
        ("= not closed", None),
        ("a = b", None),
        ("=", None),
        ("## Closed ##", (2, "Closed")),
        ("#tag", None),
    ],
)
def test_headings_have_marks_on_a_line_of_their_own(line, found):
    assert heading(line) == found


def test_a_file_without_titles_is_an_error(tmp_path):
    (tmp_path / "a.txt").write_text("Text.\n== Section ==\nText.\n")
    with pytest.raises(DataError, match="has not one article"):
        [*read_articles(tmp_path / "a.txt")]


def test_the_validation_part_of_wikitext_2_has_sixty_articles(shared):
    """As its authors state."""
    reader = read_articles(shared("wikitext2/wiki.valid.raw"))
    leads = [article.lead for article in reader]
    assert reader.report.read == len(leads) == 60
    assert not any(lead.startswith("=") for lead in leads)
