"""The rows of files: those that a reader of the library finds."""

from __future__ import annotations

import random
from pathlib import Path

import pandas
import pytest

from regard.data.readers import open_table
from regard.errors import ConfigError, DataError
from regard.sharded.manifest import ShardedTask, ShardManifest, input_files
from regard.sharded.worker import parts_with_rows

PIECES = {
    "csv": [*"ab,,\n\n\r \0é\u2028\ufeff", *('"', '""', '"x\ny"', '"p,q"', '"a""b",1\n')],
    "tsv": [*'ab\t\t\n\n\r "\0é\u2028\ufeff\f', *("\t\n", "a\t1\n")],
    "jsonl": [*"\n\n\r \0\f\u2028\ufeff", *('{"a": 1}', '{"a": "b"}\n', '{"a": NaN}', "[1]")],
}
HEADS = {"csv": "a,b\n", "tsv": "a\tb\n", "jsonl": ""}


def drawn_text(format: str, draw: random.Random) -> str:
    """A file of this format, more or less."""
    beginning = draw.choice(["", "", "\ufeff", "\n", "\r\n\n"]) + draw.choice(["", HEADS[format]])
    pieces = [*PIECES[format], "\r\n", "\n\n"]
    return beginning + "".join(draw.choices(pieces, k=draw.randint(0, 25)))


def rows_of_file(path: Path) -> list[tuple[int, dict | DataError]]:
    (file,) = input_files([path])
    return [*file.table().read()]


@pytest.mark.parametrize("format", PIECES)
def test_the_rows_are_those_of_the_reader_and_where_it_fails_something_is_said(format, tmp_path):
    """With byte order marks, empty lines, quotes, line ends of all kinds: nothing is lost without a
    word."""
    draw, read = random.Random(1), 0
    for number in range(400):
        path = tmp_path / f"{number}.{format}"
        path.write_bytes(drawn_text(format, draw).encode())
        try:
            known = [*open_table(path).read()]
        except DataError as error:
            known, reason = None, str(error)
        try:
            rows = rows_of_file(path)
        except DataError:  # of the file as a whole
            assert known is None, path.read_bytes()
            continue
        if known is None:
            failed = [row for _, row in rows if isinstance(row, DataError)]
            assert not rows or str(failed[0]) == reason, path.read_bytes()
        else:
            read += bool(known)
            assert rows == known, path.read_bytes()
    assert read > 10


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"text,n\ra,1\rb,2\r", "csv:1: .*carriage return"),
        (b'\n"text,n\na,1\n', "csv:2: .* is not CSV: .*never closed"),
        (b",text,\n1,a,2\n", "csv: has more than one column ''"),
        ("text,n\na,1\n".encode("utf-16"), "UTF-16"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "looks like gzip data: give it the ending .gz"),
    ],
)
def test_a_file_without_a_header_or_of_another_kind_is_an_error(content, told, tmp_path):
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=told):
        input_files([path])


def test_parts_of_any_size_have_all_rows_in_order_and_skipping_changes_nothing(tmp_path):
    frame = pandas.DataFrame({"text": [f"{number:05}" for number in range(500)]})
    frame["number"] = range(500)
    frame.to_parquet(tmp_path / "in.parquet", row_group_size=70)
    frame.to_csv(tmp_path / "in.csv", index=False)
    for name in ("in.parquet", "in.csv"):
        files = input_files([tmp_path / name])
        for size in (7, 90, 1000):
            task = ShardedTask("model", "embed", "jsonl", rows_per_part=size)
            manifest = ShardManifest(2, task, "", {}, files)
            parts = manifest.parts()
            assert sum(part.rows for part in parts) == 500 and len(parts) == manifest.count
            for chosen in (parts, parts[1::3]):
                for part, rows in parts_with_rows(chosen):
                    known = frame["text"][part.start : part.start + part.rows]
                    assert [row["text"] for _, row in rows] == list(known)


def test_a_file_that_is_named_twice_is_an_error_however_it_is_named(tmp_path):
    path, link = tmp_path / "in.txt", tmp_path / "link.txt"
    path.write_text("a\n")
    link.symlink_to(path)
    for other in (path, link):
        with pytest.raises(ConfigError, match="twice"):
            input_files([path, other])
