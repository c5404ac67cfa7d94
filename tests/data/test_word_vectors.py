"""Files of word vectors as GloVe and word2vec write them, whole and damaged."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pytest
import torch

from regard.data.word_vectors import read_word_vectors

WORDS = {"the": [1.0, 2.5, -3.0], "Rome": [0.5, 0, 1e-3], "cat": [4, 5, 6], "new york": [7, 8, 9]}
WANTED = ["<unk>", "cat", "CAT", "the", "dog", "Rome", "new york"]
IDS = [1, 2, 3, 5, 6]


def glove() -> str:
    return "".join(f"{word} {' '.join(map(str, v))}\n" for word, v in WORDS.items())


def binary(end: bytes) -> bytes:
    """No word of a binary file has a space."""
    rows = (
        word.encode() + b" " + np.array(v, "<f4").tobytes() + end
        for word, v in [*WORDS.items()][:3]
    )
    return b"3 3\n" + b"".join(rows)


def written(tmp_path, form):
    file = tmp_path / ("vectors.gz" if form.endswith("gz") else "vectors.txt")
    content = {
        "glove": glove().encode(),
        "word2vec": b"4 3\n" + glove().encode(),
        "spaced": b"\xef\xbb\xbf4 3\n" + re.sub(r" (?=[-\d])", "\t ", glove()).encode(),
        "crlf": glove().replace("\n", " \r\n").encode(),
        "binary": binary(b""),
        "binary lines": binary(b"\n"),
    }[form.removesuffix(" gz")]
    file.write_bytes(gzip.compress(content) if form.endswith("gz") else content)
    return file


@pytest.mark.parametrize(
    "form",
    ["glove", "glove gz", "word2vec", "spaced", "crlf", "binary", "binary lines", "binary gz"],
)
def test_the_vectors_of_words_are_found_in_every_form(tmp_path, form):
    found = read_word_vectors(written(tmp_path, form), WANTED)
    ids = IDS[: 4 if form.startswith("binary") else 5]
    wanted = [WORDS[{"CAT": "cat"}.get(WANTED[n], WANTED[n])] for n in ids]
    assert found.ids.tolist() == ids and found.width == 3
    torch.testing.assert_close(found.vectors, torch.tensor(wanted))
    assert (found.words, found.lowercased) == (7, 1)
    assert "of 7 words" in str(found) and "of width 3, 1 of them" in str(found)


def test_a_word_with_spaces_may_stand_first(tmp_path):
    file = tmp_path / "spaces.txt"
    file.write_text("2 2\nnew york 1 2\ncat 3 4\n")
    assert read_word_vectors(file, ["cat", "new york"]).vectors.tolist() == [[3, 4], [1, 2]]
