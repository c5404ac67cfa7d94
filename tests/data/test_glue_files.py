"""GLUE's files give the rows that their authors counted, in every layout they come in."""

from __future__ import annotations

import pytest
from row_tuples import tuples

from regard.data import read_glue
from regard.errors import DataError


# As the benchmark's own folders are laid out: (task, folder, part, file, header, line, row).
def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + "\n" for line in lines if line).encode())
    return path


@pytest.mark.parametrize(
    ("task", "part", "count"),
    [
        ("mrpc", "train", 4076),
        ("stsb", "test", 1379),
        ("rte", "dev", 277),
        ("cola", "dev", 1043),
        ("sst2", "test", 1821),
    ],
)
def test_parts_have_the_published_numbers_of_rows(shared, task, part, count):
    rows = tuples(read_glue(task, shared("glue"), part))
    assert len(rows) == count
    fields = 2 if task in ("cola", "sst2") else 3
    assert all(len(row) == fields and all(row) for row in rows)


def test_original_files_with_extra_columns_or_in_two_parts_are_read(tmp_path):
    line = "main-news\tMSR\t2012\t1\t3.5\tA \"b.\tC 'd."
    write(tmp_path / "sts-dev.csv", line, line + "\thttp://x", line + "\thttp://x\thttp://y")
    assert tuples(read_glue("stsb", tmp_path, "dev")) == [('A "b.', "C 'd.", "3.5")] * 3

    write(tmp_path / "in_domain_dev.tsv", "a\t1\t\tone", "a\t0\t*\ttwo")
    write(tmp_path / "out_of_domain_dev.tsv", "b\t1\t\tthree")
    rows = read_glue("cola", tmp_path, "dev")
    assert [number for number, _ in rows.numbered()] == [1, 2, 3]
    assert tuples(rows) == [("one", "1"), ("two", "0"), ("three", "1")]
    write(tmp_path / "out_of_domain_dev.tsv", "b\t1\t\tthree", "b\t1\tfour")
    with pytest.raises(DataError, match=r"out_of_domain_dev.tsv:2: has 3 fields, but should have"):
        list(read_glue("cola", tmp_path, "dev"))


def test_the_test_file_with_labels_is_preferred(tmp_path):
    write(tmp_path / "test.tsv", "index\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t1\t2\ta\tb")
    with pytest.raises(DataError, match=r"test.tsv:1: is no file of MRPC with labels"):
        list(read_glue("mrpc", tmp_path, "test"))
    original = tmp_path / "msr_paraphrase_test.txt"
    write(original, "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t1\t2\ta\tb")
    assert tuples(read_glue("mrpc", tmp_path, "test")) == [("a", "b", "0")]
