"""The rows of shards: those that a reader finds in the whole file."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pandas
import pytest

from regard.data.readers import read_records
from regard.errors import ConfigError, DataError, RegardError
from regard.sharded import rows, shards
from regard.sharded.rows import InputRow, OpenFiles
from regard.sharded.shards import plan_shards

SIZES = (1, 7, 10**6)  # bytes of a shard
PIECES = {
    "csv": [*"ab,,\n\n\r \0é\u2028\ufeff", *('"', '""', '"x\ny"', '"p,q"', '"a""b",1\n')],
    "tsv": [*'ab\t\t\n\n\r "\0é\u2028\ufeff\f', *("\t\n", "a\t1\n")],
    "jsonl": [*"\n\n\r \0\f\u2028\ufeff", *('{"a": 1}', '{"a": "b"}\n', '{"a": NaN}', "[1]")],
}
PIECES = {format: [*pieces, "\r\n", "\n\n"] for format, pieces in PIECES.items()}
HEADS = {"csv": "a,b\n", "tsv": "a\tb\n", "jsonl": ""}


def drawn_text(format: str, draw: random.Random) -> str:
    """A file of this format, more or less."""
    beginning = draw.choice(["", "", "\ufeff", "\n", "\r\n\n"]) + draw.choice(["", HEADS[format]])
    return beginning + "".join(draw.choices(PIECES[format], k=draw.randint(0, 25)))


def rows_of_shards(path: Path, size: int) -> list[InputRow] | str:
    """The rows of all shards of a size, or the error instead."""
    try:
        files, planned = plan_shards([path], size)
    except RegardError as error:
        return str(error)
    opened = OpenFiles(files)
    found = [[*opened.rows(shard)] for shard in planned]
    opened.close()
    assert [len(some) for some in found] == [shard.rows for shard in planned]
    return [row for some in found for row in some]


def plain(found: Sequence[InputRow]) -> list[tuple[int, dict[str, object], str]]:
    return [(row.line, row.record, str(row.error or "")) for row in found]


@pytest.mark.parametrize("format", PIECES)
def test_shards_of_any_size_have_the_rows_that_a_reader_of_the_whole_file_has(format, tmp_path):
    """With byte order marks, empty lines, quotes, line ends of all kinds. Where the reader raises
    an error, so does the plan, or a row has one: nothing is lost without a word."""
    draw, read = random.Random(1), 0
    for number in range(400):
        path = tmp_path / f"{number}.{format}"
        path.write_bytes(drawn_text(format, draw).encode())
        first, *others = [rows_of_shards(path, size) for size in SIZES]
        if isinstance(first, str):
            assert others == [first, first]
            with pytest.raises(DataError):
                [*read_records(path).records()]
            continue
        assert all(plain(other) == plain(first) for other in others)
        try:
            known = [*read_records(path).records()]
        except DataError:
            assert any(row.error for row in first), path.read_bytes()
        else:
            read += bool(known)
            assert [(row.line, row.record) for row in first] == known, path.read_bytes()
    assert read > 10


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"text,n\ra,1\rb,2\r", "csv:1: the header is not CSV: .*carriage return"),
        (b'\n"text,n\na,1\n', "csv:2: the header is not CSV: .*never closed"),
        (b",text,\n1,a,2\n", "csv:1: has more than one column ''"),
        ("text,n\na,1\n".encode("utf-16"), "looks like UTF-16"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "looks like gzip data: give it the ending .gz"),
        (b"BZh91AY&SY", "looks like bzip2 data"),
    ],
)
def test_a_file_without_a_header_or_of_another_kind_is_an_error_before_anything_runs(
    content, told, tmp_path
):
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=told):
        plan_shards([path], None)


def test_a_text_that_begins_as_bzip2_data_do_is_text(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("BZh is no word\n")
    (row,) = rows_of_shards(path, 1)
    assert row.record == {"text": "BZh is no word"}


# --------------------------------------------------------------------------------------- Parquet


@pytest.mark.parametrize("group", [1, 7, 100, 10_000])
def test_a_parquet_file_is_divided_into_shards_whatever_its_row_groups(
    group, tmp_path, monkeypatch
):
    """pandas writes a single row group for a million rows."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(shards, "MAX_ROWS", 90)
    monkeypatch.setattr(rows, "CHUNK_ROWS", 16)
    path = tmp_path / "in.parquet"
    frame = pandas.DataFrame({"text": [f"{number:05}" for number in range(500)]})
    frame["number"] = range(500)
    frame.to_parquet(path, row_group_size=group)
    for size in (1, 600, 10**9):
        files, planned = plan_shards([path], size)
        assert sum(shard.rows for shard in planned) == 500
        assert max(shard.rows for shard in planned) <= 90
        assert len(planned) >= {1: 500, 600: 10, 10**9: 6}[size]
        opened, known = OpenFiles(files), frame.to_dict("records")
        order = [*planned, *random.Random(size).sample(planned, len(planned))]
        for shard in order:
            found = [*opened.rows(shard)]
            assert [row.line for row in found] == [*range(shard.line, shard.line + shard.rows)]
            assert [row.record for row in found] == known[shard.start : shard.stop]
        opened.close()


def test_a_parquet_row_that_cannot_be_read_fails_alone(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    days = pyarrow.array([0, 10**8, 1], pyarrow.int32()).cast(pyarrow.date32())  # one is in the
    # year 275,760, which Python's dates do not have
    path = tmp_path / "in.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", "b", "c"], "day": days}), path)
    found = rows_of_shards(path, 1000)
    assert [row.record.get("text") for row in found] == ["a", None, "c"]
    assert "has a value that cannot be read" in str(found[1].error)


# ------------------------------------------------------------------------------------ many files


def test_a_file_that_is_named_twice_is_an_error_however_it_is_named(tmp_path):
    path, link = tmp_path / "in.txt", tmp_path / "link.txt"
    path.write_text("a\n")
    link.symlink_to(path)
    (tmp_path / "folder").mkdir()
    for other in (path, tmp_path / "folder" / ".." / "in.txt", link):
        with pytest.raises(ConfigError, match="twice"):
            plan_shards([path, other], None)
