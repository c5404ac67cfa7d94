"""Sentences come out of columns as the shared tasks counted them; malformed lines are named."""

from __future__ import annotations

import gzip

import pytest

from regard.data import TaggedSentence, read_conll
from regard.errors import DataError

TEXT = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O

\t
. . O O
"""


def write(path, text):
    path.write_bytes(text.encode())
    return path


def test_other_shared_tasks_are_read_from_archives(shared):
    chunks = read_conll(f"{shared('nltk/conll2000.zip')}!conll2000/train.txt")
    found = list(chunks)
    assert len(found) == 8936 and sum(len(s.words) for s in found) == 211727
    spanish = f"{shared('nltk/conll2002.zip')}!conll2002/esp.train"
    assert sum(1 for _ in read_conll(spanish)) == 8323


def test_columns_are_chosen_and_sentences_numbered(tmp_path):
    path = write(tmp_path / "x.txt", TEXT)
    read = read_conll(path)
    first, last = TaggedSentence(("EU", "rejects"), ("I-ORG", "O")), TaggedSentence((".",), ("O",))
    assert list(read.numbered()) == [(3, first), (7, last)]
    assert list(read) == [first, last]  # again
    assert str(read.report) == (
        f"{path}: 2 examples read, 2 kept; -DOCSTART- line left out: 1 (first at line 1)"
    )
    assert [s.tags for s in read_conll(path, tags=1)] == [("NNP", "VBZ"), (".",)]
    assert [s.words for s in read_conll(path, words=1, tags=2)] == [("NNP", "VBZ"), (".",)]
    compressed = tmp_path / "x.txt.gz"
    compressed.write_bytes(gzip.compress(TEXT.replace("\n", "\r\n").encode()))
    assert list(read_conll(compressed)) == [first, last]


def test_tabs_keep_spaces_inside_and_spaces_keep_other_white_space_inside(tmp_path):
    tabs = write(tmp_path / "tabs.tsv", "New York\tB\nis\tO\n\nx\tO")
    assert list(read_conll(tabs)) == [(("New York", "is"), ("B", "O")), (("x",), ("O",))]
    spaces = write(tmp_path / "spaces.txt", "10\u00a0000  B \n \nx\u2028y O\n")
    assert list(read_conll(spaces)) == [(("10\u00a0000",), ("B",)), (("x\u2028y",), ("O",))]


def test_lists_of_pairs_and_mappings_give_sentences():
    pairs = [(["a", "b"], ["O", "X"]), {"words": ["c"], "tags": ["O"]}]
    read = read_conll(pairs)
    assert list(read) == list(read) == [(("a", "b"), ("O", "X")), (("c",), ("O",))]
    once = read_conll(iter(pairs))
    assert len(list(once)) == 2
    with pytest.raises(DataError, match="can be read only once"):
        list(once)
    for wrong, message in (
        ((["a", "b"], ["O"]), r"<list>:1: has 2 words and 1 tags"),
        (("a", "O"), r"<list>:1: words and tags must each be a list"),
        ("ab", r"<list>:1: must be a pair"),
        ((["a"], [None]), r"<list>:1: field 0 must be text, but is missing"),
        ({"words": ["a"]}, r"<list>:1: has no field 'tags'"),
    ):
        with pytest.raises(DataError, match=message):
            list(read_conll([wrong]))


def test_json_lines_give_sentences(tmp_path):
    file = tmp_path / "tagged.jsonl"
    file.write_text('{"words": ["EU", "votes"], "tags": ["B-ORG", "O"]}\n\n{"words": ["a"]}\n')
    records = iter(read_conll(file))
    assert next(records) == (("EU", "votes"), ("B-ORG", "O"))
    with pytest.raises(DataError, match=r"tagged.jsonl:3: has no field 'tags'"):
        next(records)


def test_comments_and_conll_u(tmp_path):
    text = "# an id\nAnna N\n\n# id = 2\n# N\n1 M\n\n# N\nB M\n"
    file = read_conll(write(tmp_path / "x.conll", text))
    assert [s.words for s in file] == [("Anna",), ("#", "1"), ("#", "B")]
    assert file.report.events["comment line left out"] == {"count": 2, "first_line": 1}
    rows = "2-3 don't _ _", "2 do do AUX", "3 n't not PART", "3.1 really really ADV"
    lines = ["# text = # don't", "1 # # SYM", *rows]
    text = "\n".join(lines[:1] + [line.replace(" ", "\t") for line in lines[1:]])
    path = write(tmp_path / "x.conllu", text)
    assert list(read_conll(path)) == [(("#", "do", "n't"), ("SYM", "AUX", "PART"))]
    assert list(read_conll(path, tags=2)) == [(("#", "do", "n't"), ("#", "do", "not"))]
