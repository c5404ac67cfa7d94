"""Files of word vectors as GloVe and word2vec write them, whole and damaged."""

from __future__ import annotations

import gzip
import random
import re

import numpy as np
import pytest
import torch

from regard.data.word_vectors import read_word_vectors
from regard.errors import DataError

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


@pytest.mark.parametrize(
    "content, said",
    [
        ("cat 1 2\ndog 1\n", r":2: has 1 numbers behind the word, not 2"),
        ("cat 1 2\ndog 1 x\n", r":2: has something that is no number"),
        ("cat 1 nan\n", r":1: has a number that is infinite or NaN"),
        ("cat 1 1e39\n", r":1: has a number that is infinite or NaN"),
        ("2 3\ncat 1 2\ndog 1 2\n", r":2: has 2 numbers behind the word, not 3"),
        ("3 2\ncat 1 2\ndog 1 2\n", r": has 1 words fewer than its first line says"),
        ("", r":1: is no word with its numbers"),
        ("cat\n", r":1: is no word with its numbers"),
    ],
)
def test_damaged_lines_are_named(tmp_path, content, said):
    file = tmp_path / "damaged.txt"
    file.write_text(content)
    with pytest.raises(DataError, match=said):
        read_word_vectors(file, ["cat", "dog"])


def test_a_file_without_any_of_the_words_gives_none(tmp_path):
    found = read_word_vectors(written(tmp_path, "glove"), ["zebra"])
    assert found.vectors.shape == (0, 3) and not len(found.ids)


def test_a_word_with_spaces_may_stand_first(tmp_path):
    file = tmp_path / "spaces.txt"
    file.write_text("2 2\nnew york 1 2\ncat 3 4\n")
    assert read_word_vectors(file, ["cat", "new york"]).vectors.tolist() == [[3, 4], [1, 2]]


def test_changed_bytes_of_a_compressed_file_are_an_error_with_its_name(tmp_path):
    draw, file = random.Random(1), tmp_path / "changed.gz"
    whole = gzip.compress("".join(f"w{n} {draw.random()}\n" for n in range(500)).encode())
    for _ in range(40):
        damaged = bytearray(whole)
        damaged[draw.randrange(12, len(whole) - 8)] ^= 1 << draw.randrange(8)
        file.write_bytes(damaged)
        with pytest.raises(DataError, match="changed.gz"):
            read_word_vectors(file, ["w1"])


@pytest.mark.parametrize("number", ["0.5", "-1.25", ".5", "3.", "1e-3", "2.5E+01", "+0.25"])
@pytest.mark.parametrize("first", ["2 2", "of .5 1.5"])
def test_lines_with_more_numbers_are_errors_and_no_words_with_spaces(tmp_path, number, first):
    path = tmp_path / "vectors.txt"
    path.write_text(f"{first}\nNew York 0.5 1.5\nthe {number} 0.5 1.5\n")
    with pytest.raises(DataError, match=r"vectors.txt:3: has more than 2 numbers"):
        read_word_vectors(path, ["the", "New York"])
    path.write_text(f"{first}\nNew York 0.5 1.5\nchapter 4 0.5 1.5\na. .b 0.5 1.5\n")
    found = read_word_vectors(path, ["chapter 4", "New York", "a. .b"])
    assert found.ids.tolist() == [0, 1, 2]
