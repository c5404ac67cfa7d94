"""Helpers of the notebooks of lectures; tests/test_docs.py runs the notebooks."""

from __future__ import annotations

from examples.lectures.vocabulary import vocabulary_statistics


def test_the_multilingual_vocabulary_has_the_published_shares(shared):
    """36.5 % continuations and 106 reserved (Ács 2019, "Exploring BERT's vocabulary")."""
    lines = shared("vocab/bert-base-multilingual-cased-vocab.txt").read_text().splitlines()
    picture = vocabulary_statistics(lines, "BERT, multilingual, cased")
    counts = picture.numbers["counts"]
    assert counts["tokens"] == 119_547 and counts["reserved"] == 106
    assert round(100 * counts["continuations"] / counts["tokens"], 1) == 36.5
    assert counts["continuations"] == sum(line.startswith("##") and line != "##" for line in lines)
    assert sum(picture.numbers["scripts"].values()) == 119_547 - 106
