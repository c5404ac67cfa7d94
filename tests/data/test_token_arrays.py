"""Encoded examples equal the tokenizer's rows; dropped and cut ones are counted and located."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import FieldEncoder, TokenArray, encode, encode_texts, open_table
from regard.data.token_arrays import _CHUNK
from regard.errors import DataError


class Letters:
    """A tokenizer of one id per letter that is no space: a is 10, b is 11 and so on."""

    vocab_size = 100

    def encode_many(self, texts):
        return [[ord(c) - 87 for c in text if not c.isspace()] for text in texts]


def rows_of(tokens):
    return [tokens[i].tolist() for i in range(len(tokens))]


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=6), st.data())
def test_padded_rows_equal_a_loop(rows, data):
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6))
    batch = TokenArray.of(rows, 10).padded(np.array(chosen, int), pad=77)
    width = max((len(rows[i]) for i in chosen), default=0)
    assert batch.ids.tolist() == [rows[i] + [77] * (width - len(rows[i])) for i in chosen]
    assert batch.lengths.tolist() == [len(rows[i]) for i in chosen]
    assert batch.keep.sum(1).tolist() == batch.lengths.tolist()


def test_texts_are_encoded_without_holding_them(tmp_path):
    texts = ["ab", "", "c"] * _CHUNK
    found = encode_texts(iter(texts), Letters(), first=[7], after=[2])
    assert rows_of(found) == [[7], *([*ids, 2] for ids in Letters().encode_many(texts))]
    path = tmp_path / "long.txt"
    with path.open("w") as file:
        file.writelines("abcdefghij" * 20 + "\n" for _ in range(20_000))
    tracemalloc.start()
    tokens = encode_texts(open_table(path).texts(), Letters())
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(tokens.ids) == 4_000_000 and most < 3 * tokens.ids.nbytes


class Slow(Letters):
    """A tokenizer that raises an error for one text."""

    def encode_many(self, texts):
        if "bad" in texts:
            raise DataError("letters", None, "cannot be encoded.")
        return super().encode_many(texts)


@pytest.mark.parametrize("first", ["long", "bad", "unread"])
def test_of_several_errors_the_first_one_is_raised(tmp_path, first):
    """Three faults, each in a chunk of its own."""
    order = {"long": "long bad unread", "bad": "bad unread long", "unread": "unread long bad"}
    faults = {"long": b"abcdefgh\n", "bad": b"bad\n", "unread": b"\xff\n"}
    file = tmp_path / "x.txt"
    parts = [b"a\n" * _CHUNK + faults[name] for name in order[first].split()]
    file.write_bytes(b"a\n" * _CHUNK + b"".join(parts))
    said = {"long": "has 9 tokens", "bad": "cannot be encoded", "unread": "is not UTF-8"}
    with pytest.raises(DataError, match=said[first]):
        encode(open_table(file), [FieldEncoder("text", Slow(), after=(2,), max_length=6)])


@given(
    st.lists(st.text("ab c", max_size=8), min_size=1, max_size=12),
    st.sampled_from(["truncate", "skip"]),
    st.integers(0, 2),
    st.integers(0, 2),
)
def test_framed_and_truncated_sequences_equal_a_loop(texts, too_long, before, after):
    column = FieldEncoder("x", Letters(), (1,) * before, (2,) * after, 6, too_long)
    wanted = column.encode_many([*texts, "a"])
    if too_long == "skip":
        wanted = [row for row in wanted if len(row) <= 6]
    wanted = [row if len(row) <= 6 else column.truncated(row) for row in wanted]
    found = encode([*texts, "a"], [column], "keep").columns[0]
    assert rows_of(found) == wanted and found.offsets[-1] == len(found.ids)
