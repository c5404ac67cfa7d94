"""Data files that are damaged, far too large, or no files: an error with the file and the line."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from regard.data import hash_of, open_table, read_choices, read_conll, read_glue, read_squad
from regard.data.files import LONGEST_LINE, lines, open_bytes
from regard.errors import DataError

READERS: dict[str, Callable[[str], Any]] = {
    "x.txt": lambda path: list(open_table(path)),
    "x.tsv": lambda path: list(open_table(path, (0, 1))),
    "x.csv": lambda path: list(open_table(path, (0, 1))),
    "x.jsonl": lambda path: list(open_table(path, ("a",))),
    "x.conll": lambda path: list(read_conll(path)),
    "x.glue": lambda path: list(read_glue("sst2", path)),
}


COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


# ---- compressed -------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_parts_one_after_the_other_are_read_to_the_end(tmp_path, ending):
    path = tmp_path / f"x.txt{ending}"
    first, second = (f"{n} é漢\n" * 12_000 for n in (1, 2))
    parts = [COMPRESS[ending](one.encode()) for one in (first, "", second)]
    path.write_bytes(b"".join(parts))
    assert list(lines(path)) == (first + second).splitlines()
    with open_bytes(path) as stream:  # in any order
        whole = (first + second).encode()
        for at in (len(whole) - 9, 5, 90_000):
            stream.seek(at)
            assert stream.tell() == at and stream.read(7) == whole[at : at + 7]
        assert stream.read() == whole[90_007:] and stream.read() == b""


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_compressed_file_that_is_cut_or_has_other_bytes_is_never_read_as_a_whole(
    tmp_path, ending
):
    path, draw = tmp_path / f"x.txt{ending}", random.Random(1)
    text = "".join(f"{draw.random()}\n" for _ in range(2000))
    whole = COMPRESS[ending](text.encode())
    damaged = whole[:40] + bytes(40) + whole[80:]
    cut = [whole[:at] for at in (1, 9, len(whole) // 2, len(whole) - 1)]
    for data in (*cut, whole + whole[:-1], damaged):
        path.write_bytes(data)
        read_lines: list[str] = []
        with pytest.raises(DataError, match=r"x\.txt\.\w+: cannot be decompressed after line"):
            read_lines.extend(lines(path))
        with pytest.raises(DataError, match="cannot be decompressed"), open_bytes(path) as stream:
            stream.read()


# ---- too large --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "packed"), [(name, name == "x.tsv") for name in READERS])
def test_a_line_beyond_the_limit_raises_a_located_error(tmp_path, name, packed):
    first = b'{"a": "b"}\n' if name == "x.jsonl" else b"sentence\tlabel\n"
    first = {"x.csv": b"a,b\n", "x.tsv": b"good\tyes\n"}.get(name, first)
    data = first + b"a" * (LONGEST_LINE + 1)
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    with pytest.raises(DataError, match=f":2: the line has more than {LONGEST_LINE:,} bytes"):
        READERS[name](str(path))


def test_a_text_on_one_line_is_read_as_text(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"anarchism " * (LONGEST_LINE // 5))
    assert sum(map(len, open_table(path, format="text").texts())) == path.stat().st_size
    with pytest.raises(DataError, match="format = 'text'"):
        list(open_table(path))


# ---- no files ---------------------------------------------------------------------------------


def test_a_pipe_raises_an_error_at_once(tmp_path):
    pipe = tmp_path / "x.txt"
    os.mkfifo(pipe)
    for reading in (lambda: list(lines(pipe)), lambda: hash_of(pipe), lambda: read_squad(pipe)):
        with pytest.raises(DataError, match=r"x\.txt: is a pipe or a device"):
            list(reading())


# ---- drawn faults -----------------------------------------------------------------------------

ANSWER = {"text": "two", "answer_start": 4}
QUESTION = {"id": "1", "question": "q", "answers": [ANSWER], "is_impossible": False}
PARAGRAPH = {"context": "one two three", "qas": [QUESTION]}
SQUAD = {"data": [{"title": "t", "paragraphs": [PARAGRAPH]}]}
DREAM = [[["M: a", "W: b"], [{"question": "q", "choice": ["x", "y"], "answer": "y"}], "id1"]]
CHOICE = {"context": "c", "question": "q", "choices": ["a", "b"], "answer": 1}
TAGGED = {"words": ["a", "b"], "tags": ["O", "B-X"]}
SWAG = "sent1,sent2,ending0,ending1,ending2,ending3,label\na,b,c,d,e,f,1\n"
FILES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "x.txt": ("one é\ntwo 漢\n" * 3, lambda path: list(open_table(path))),
    "v.txt": ("one é\n\ntwo\n" * 3, lambda path: list(open_table(path, format="text"))),
    "x.tsv": ("a\tb\n" + "one\ttwo\n" * 3, lambda path: list(open_table(path, ("a", "b")))),
    "x.csv": ('a,b\n"one\n""x""",two\n' * 2, lambda path: list(open_table(path, ("a", "b")))),
    "x.jsonl": (
        '{"a": {"b": "é"}, "c": 1.5}\n' * 3,
        lambda path: list(open_table(path, ("a.b", "c"))),
    ),
    "x.conll": ("-DOCSTART- O\n\n" + "a O\nb B-X\n\n" * 3, lambda path: list(read_conll(path))),
    "t.jsonl": (f"{json.dumps(TAGGED)}\n" * 3, lambda path: list(read_conll(path))),
    "s.json": (json.dumps(SQUAD), lambda path: list(read_squad(path, on_misaligned="fix"))),
    "d.json": (json.dumps(DREAM, indent=1), lambda path: list(read_choices(path))),
    "c.jsonl": (f"{json.dumps(CHOICE)}\n" * 3, lambda path: list(read_choices(path))),
    "w.csv": (SWAG, lambda path: list(read_choices(path))),
    "g.tsv": ("sentence\tlabel\none\t1\ntwo\t0\n", lambda path: list(read_glue("cola", path))),
}
VALUES: list[Any] = [
    *(None, True, 0, -1, 3, 1.5, "", "x", "\ud800", "9" * 5000, [], [1], [[]], {}, {"a": 1}),
    *(2**70, float("nan"), {"text": ["two"], "answer_start": ["4"]}, {"text": "two"}),
]
BYTES = [
    *(b"\0", b"\r", b"\n\n", b'"', b"\t", b",", b"\xff", b"\xef\xbb\xbf", b"[" * 20_000),
    *(b"9" * 6000, b"NaN", b"1e999", b"\\ud800", b"\xed\xa0\x80", b"\x0c"),
]


def changed_value(value: Any, draw: random.Random) -> Any:
    """A JSON value with one part of it replaced or left out."""
    if value and isinstance(value, dict | list) and draw.random() < 0.8:
        key = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
        if draw.random() < 0.2:
            del value[key]
        else:
            value[key] = changed_value(value[key], draw)
        return value
    return draw.choice(VALUES)


def changed_text(name: str, text: str, draw: random.Random) -> bytes:
    """The file with a part of it damaged: a field, some bytes, its encoding, its line ends."""
    if "json" in name and draw.random() < 0.5:
        records = text.strip().split("\n") if name.endswith("jsonl") else [text]
        at = draw.randrange(len(records))
        records[at] = json.dumps(changed_value(json.loads(records[at]), draw))
        return "\n".join(records).encode()
    data, at = text.encode(), draw.randrange(len(text))
    kinds = [
        lambda: data[:at] + draw.choice(BYTES) + data[at:],
        lambda: data[:at] + data[at + draw.randint(1, 9) :],
        lambda: data[:at],
        lambda: text.encode(draw.choice(["utf-16", "utf-16-le", "utf-8-sig", "utf-32"])),
        lambda: data.replace(b"\n", draw.choice([b"\r", b"\r\n", b"\n\r"])),
        lambda: draw.choice([b"", b"\n", b"null", b"{}", b"[]", b"0", b" "]),
    ]
    return draw.choice(kinds)()


def packed(name: str, data: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Compressed or not, whole or damaged."""
    ending = draw.choice(["", "", *COMPRESS, ".zip"])
    if ending == ".zip":
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, data)
        data = held.getvalue()
    elif ending:
        data = COMPRESS[ending](data)
    if ending and draw.random() < 0.5:
        at = draw.randrange(len(data))
        flipped = data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
        data = draw.choice([flipped, data[:at], data + b"garbage", data + data])
    return name + ending, data


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_read_or_raises_an_error_with_its_name(tmp_path, name):
    text, reading = FILES[name]
    draw = random.Random(name)
    refused = 0
    for _ in range(60):
        given, data = packed(name, changed_text(name, text, draw), draw)
        path = tmp_path / given
        path.write_bytes(data)
        member = f"!{name}" if given.endswith(".zip") else ""
        try:
            reading(f"{path}{member}")
        except DataError as error:
            refused += 1
            assert str(error).startswith(str(path))
            str(error).encode()  # it can be printed
    assert refused
