"""The rows of files: those that a reader of the library finds."""

from __future__ import annotations

import pandas
import pytest

from regard.errors import ConfigError, DataError
from regard.sharded.manifest import ShardedTask, ShardManifest, input_files
from regard.sharded.worker import parts_with_rows


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
